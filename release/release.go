// Package release knows the versions that clusters can run: how a version is written, the image
// that stands for it, and the catalogue of versions in the lifecycle manager.
//
// It is a tool: it imports api and client packages, and no service.
package release

import (
	"fmt"
	"regexp"
	"strings"

	"atoll.dev/cluster"
)

// imagePrefix begins the image of every version that Atoll itself provides.
const imagePrefix = cluster.ReleaseRepository + ":"

var versionPattern = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.-]+)?$`)

// CheckVersion returns an error unless the text is a version such as 1.36.3 or 1.37.0-rc.1.
func CheckVersion(version string) error {
	if !versionPattern.MatchString(version) {
		return fmt.Errorf("%q is not a version such as 1.36.3", version)
	}
	return nil
}

// Image returns the image of a version of the region's catalogue.
func Image(version string) string { return imagePrefix + version }

// VersionOf returns the version of an image, and an image of another registry as it is.
func VersionOf(image string) string { return strings.TrimPrefix(image, imagePrefix) }

// resourceName returns the name of the Version resource of a version. Names have no dots.
func resourceName(version string) string { return strings.ReplaceAll(version, ".", "-") }
