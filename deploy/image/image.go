package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// options are the values of the command line.
type options struct {
	programs, out     string // directories
	version, revision string // labels; may be empty
	created           time.Time
}

// images are the programs of each image. The first one is its entrypoint.
var images = []struct {
	name     string
	programs []string
}{
	{"atoll", []string{"atoll"}},
	{"atoll-hosting", []string{"atoll", "atoll-kube"}},
}

// writtenImage is an image of one architecture in a layout.
type writtenImage struct {
	image, platform string
	digest          v1.Hash
}

// writeLayouts makes a layout of each image in a new directory, reads the layouts back to validate them, and moves the
// directory to o.out. After an error, o.out is as it was.
func writeLayouts(o options) ([]writtenImage, error) {
	platforms, err := findPlatforms(o.programs)
	if err != nil {
		return nil, err
	}
	if err := checkReplaceable(o.out); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp(filepath.Dir(o.out), ".image.*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return nil, err
	}
	layers := layerCache{options: o, layers: map[string]v1.Layer{}}
	var all []writtenImage
	for _, image := range images {
		index := v1.ImageIndex(empty.Index)
		for _, platform := range platforms {
			if !hasPrograms(o.programs, platform, image.programs) {
				continue
			}
			img, err := newImage(&layers, image.name, image.programs, platform)
			if err != nil {
				return nil, fmt.Errorf("image %s for %s: %w", image.name, platform, err)
			}
			digest, err := img.Digest()
			if err != nil {
				return nil, err
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: img, Descriptor: v1.Descriptor{Platform: &platform},
			})
			all = append(all, writtenImage{image.name, platform.String(), digest})
		}
		if err := writeLayout(filepath.Join(temp, image.name), index, o.version); err != nil {
			return nil, fmt.Errorf("image %s: %w", image.name, err)
		}
	}
	if err := os.RemoveAll(o.out); err != nil {
		return nil, err
	}
	return all, os.Rename(temp, o.out) // a directory; after a crash it is built again
}

// findPlatforms returns the platform of each directory linux-ARCH. Each must have a static atoll for its architecture,
// and one at least atoll-kube.
func findPlatforms(programs string) ([]v1.Platform, error) {
	var platforms []v1.Platform
	hosting := false
	for _, arch := range []string{"amd64", "arm64"} {
		platform := v1.Platform{OS: "linux", Architecture: arch}
		if _, err := os.Stat(platformDir(programs, platform)); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		platforms = append(platforms, platform)
		if err := checkStatic(filepath.Join(platformDir(programs, platform), "atoll"), arch); err != nil {
			return nil, err
		}
		if hasPrograms(programs, platform, []string{"atoll-kube"}) {
			hosting = true
			if err := checkStatic(filepath.Join(platformDir(programs, platform), "atoll-kube"), arch); err != nil {
				return nil, err
			}
		}
	}
	if !hosting {
		return nil, fmt.Errorf("%s: neither linux-amd64 nor linux-arm64 has atoll and atoll-kube", programs)
	}
	return platforms, nil
}

// platformDir returns the directory of the programs of a platform.
func platformDir(programs string, platform v1.Platform) string {
	return filepath.Join(programs, platform.OS+"-"+platform.Architecture)
}

// hasPrograms reports whether all the named programs exist for the platform.
func hasPrograms(programs string, platform v1.Platform, names []string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(platformDir(programs, platform), name)); err != nil {
			return false
		}
	}
	return true
}

// checkReplaceable returns an error when a directory has anything but layouts of images, so that a wrong -out deletes
// nothing.
func checkReplaceable(out string) error {
	entries, err := os.ReadDir(out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if _, err := os.Stat(filepath.Join(out, entry.Name(), "oci-layout")); err != nil {
			return fmt.Errorf("%s has %s, which is not an OCI layout: name another directory, or remove it",
				out, entry.Name())
		}
	}
	return err
}

// newImage makes the image of one platform: a layer of the files that every image has, and a layer for each program.
func newImage(layers *layerCache, name string, programs []string, platform v1.Platform) (v1.Image, error) {
	created := v1.Time{Time: layers.created}
	config := &v1.ConfigFile{
		Created: created, OS: platform.OS, Architecture: platform.Architecture, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       fmt.Sprintf("%d:%d", nonroot, nonroot),
			Env:        []string{"PATH=" + searchPath, "SSL_CERT_FILE=/" + certificates},
			Entrypoint: []string{"/" + programDir + "/" + programs[0]},
			WorkingDir: "/",
			Labels:     map[string]string{},
		},
	}
	for label, value := range map[string]string{
		"title": name, "version": layers.version, "revision": layers.revision, "licenses": "Apache-2.0",
	} {
		if value != "" {
			config.Config.Labels["org.opencontainers.image."+label] = value
		}
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, config)
	if err != nil {
		return nil, err
	}
	base, err := layers.base()
	if err != nil {
		return nil, err
	}
	added := []mutate.Addendum{{Layer: base, History: v1.History{
		Created: created, CreatedBy: "deploy/image", Comment: "users, certificate authorities, /tmp",
	}}}
	for _, program := range programs {
		layer, err := layers.program(filepath.Join(platformDir(layers.programs, platform), program))
		if err != nil {
			return nil, err
		}
		added = append(added, mutate.Addendum{Layer: layer, History: v1.History{
			Created: created, CreatedBy: "deploy/image", Comment: program,
		}})
	}
	return mutate.Append(img, added...)
}

// writeLayout writes an OCI layout whose only entry is the index, and validates what is on disk.
func writeLayout(dir string, index v1.ImageIndex, version string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	annotations := map[string]string{}
	if version != "" {
		annotations["org.opencontainers.image.ref.name"] = version
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(annotations)); err != nil {
		return err
	}
	read, err := path.ImageIndex()
	if err != nil {
		return err
	}
	if err := validate.Index(read); err != nil {
		return fmt.Errorf("reading %s back: %s", dir, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}
