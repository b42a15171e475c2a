package cluster

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"atoll.dev/cluster/document"
)

// ReleaseRepository is the repository of the releases' images. The tag is the
// version of Kubernetes: atoll.dev/release:1.36.3.
const ReleaseRepository = "atoll.dev/release"

// ReleaseImage returns the image of a version.
func ReleaseImage(version string) string { return ReleaseRepository + ":" + version }

// ReleaseVersion returns the version of an image of ReleaseRepository, as
// 1.36.3; ok is false for every other image.
func ReleaseVersion(image string) (v string, ok bool) {
	v, ok = strings.CutPrefix(image, ReleaseRepository+":")
	if _, err := version.ParseSemantic(v); !ok || err != nil || strings.HasPrefix(v, "v") {
		return "", false
	}
	return v, true
}

// maxNodeSkew is how many minor versions the nodes may be behind their control
// plane: the version skew policy of Kubernetes for kubelets.
const maxNodeSkew = 3

// CheckUpgrade returns why a control plane that runs version from may not go to
// version to, and nil when it may:
//
//   - it may stay, or go to a later patch version or to the next minor version;
//   - it may not go back, also not within a minor version: HyperShift and the
//     clouds do not support a downgrade;
//   - it may not skip a minor version, nor change the major version.
//
// The error reads as a predicate of the wanted release: "is 1.35.9, and what
// runs is 1.36.3; a release does not go back". A version that cannot be read, as
// "" of a new plane, is not judged.
func CheckUpgrade(from, to string) error {
	before, err := version.ParseSemantic(from)
	if err != nil {
		return nil
	}
	after, err := version.ParseSemantic(to)
	switch {
	case err != nil:
		return nil
	case after.LessThan(before):
		return fmt.Errorf("is %s, and what runs is %s; a release does not go back", after, before)
	case after.Major() != before.Major() || after.Minor() > before.Minor()+1:
		return fmt.Errorf("is %s, and what runs is %s; go up one minor version at a time", after, before)
	}
	return nil
}

// CheckNodeVersion returns why nodes that run version from ("" for new ones) may
// not go to version to below a control plane of version plane, and nil when they
// may: nodes do not go back, are never newer than their control plane, and at
// most maxNodeSkew minor versions behind it. The error reads as a predicate of
// the wanted release. Versions that cannot be read are not judged.
func CheckNodeVersion(from, to, plane string) error {
	wanted, err := version.ParseSemantic(to)
	if err != nil {
		return nil
	}
	control, err := version.ParseSemantic(plane)
	if err != nil {
		return nil
	}
	before, err := version.ParseSemantic(from)
	switch {
	case err == nil && wanted.LessThan(before):
		return fmt.Errorf("is %s, and the nodes run %s; a release does not go back", wanted, before)
	case control.LessThan(wanted):
		return fmt.Errorf("is %s, and the cluster's control plane runs %s; upgrade that first", wanted, control)
	case wanted.Major() != control.Major() || wanted.Minor()+maxNodeSkew < control.Minor():
		return fmt.Errorf("is %s, which is too old for the cluster's control plane of %s", wanted, control)
	}
	return nil
}

// Release is one release that a region offers.
type Release struct {
	Version string // of Kubernetes, without v
	Image   string
}

// Releases are the releases that a region offers, in any order.
type Releases []Release

// Newest returns the release of a cluster that names none. ok is false when the
// region offers no release that can be read.
func (r Releases) Newest() (newest Release, ok bool) {
	var best *version.Version
	for _, release := range r {
		v, err := version.ParseSemantic(release.Version)
		if err == nil && release.Image != "" && (best == nil || best.LessThan(v)) {
			best, newest, ok = v, release, true
		}
	}
	return newest, ok
}

// byImage finds a release by its image.
func (r Releases) byImage(image string) (found Release, ok bool) {
	i := slices.IndexFunc(r, func(release Release) bool { return release.Image == image })
	if i < 0 || image == "" {
		return Release{}, false
	}
	return r[i], true
}

// hasVersion reports whether the region offers a version.
func (r Releases) hasVersion(v string) bool {
	return slices.ContainsFunc(r, func(release Release) bool { return release.Version == v })
}

// VersionOf returns the version of an image: by the releases, else by the
// image's tag, because a cluster may run a release that is offered no more.
func (r Releases) VersionOf(image string) string {
	if release, ok := r.byImage(image); ok {
		return release.Version
	}
	return image[strings.LastIndex(image, ":")+1:]
}

// checkOffered reports whether the region offers an image, and adds a problem
// when it does not.
func (r Releases) checkOffered(p *document.Problems, path, image string) (offered bool) {
	if _, ok := r.byImage(image); ok {
		return true
	}
	images := make([]string, len(r))
	for i, release := range r {
		images[i] = release.Image
	}
	p.Add(path, "%s is not a release of this region; possible: %s", document.Quote(image), strings.Join(images, ", "))
	return false
}

// checkUpgrade adds a problem when a control plane may not go from one image to
// another.
func (r Releases) checkUpgrade(p *document.Problems, path, from, to string) {
	if from == to || !r.checkOffered(p, path, to) {
		return
	}
	if err := CheckUpgrade(r.VersionOf(from), r.VersionOf(to)); err != nil {
		p.Add(path, "%s", err)
	}
}
