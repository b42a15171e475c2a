package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// This file reads layouts by the words of the specification of OCI images and not by the library that wrote them.

type descriptor struct {
	MediaType   string
	Digest      string
	Size        int64
	Platform    *struct{ OS, Architecture string }
	Annotations map[string]string
}

type index struct {
	SchemaVersion int
	MediaType     string
	Manifests     []descriptor
}

type manifest struct {
	SchemaVersion int
	MediaType     string
	Config        descriptor
	Layers        []descriptor
}

type imageConfig struct {
	Created, OS, Architecture string
	Config                    struct {
		User, WorkingDir     string
		Env, Entrypoint, Cmd []string
		Labels               map[string]string
	}
	RootFS struct {
		Type    string
		DiffIDs []string `json:"diff_ids"`
	}
}

// ociLayout is a layout on disk, and the blobs that were read from it.
type ociLayout struct {
	t    *testing.T
	dir  string
	read map[string]bool
}

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// blob returns the bytes of a descriptor, whose type, size and digest must be right.
func (l *ociLayout) blob(d descriptor, mediaType string) []byte {
	l.t.Helper()
	if d.MediaType != mediaType {
		l.t.Errorf("%s: %s has the type %s, want %s", l.dir, d.Digest, d.MediaType, mediaType)
	}
	name, found := strings.CutPrefix(d.Digest, "sha256:")
	if !found {
		l.t.Fatalf("%s: the digest %q is not of SHA-256", l.dir, d.Digest)
	}
	data, err := os.ReadFile(filepath.Join(l.dir, "blobs", "sha256", name))
	if err != nil {
		l.t.Fatal(err)
	}
	if int64(len(data)) != d.Size || digest(data) != d.Digest {
		l.t.Errorf("%s: the blob %s has %d bytes and the digest %s, want %d bytes", l.dir, d.Digest, len(data),
			digest(data), d.Size)
	}
	l.read[name] = true
	return data
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

func (l *ociLayout) decode(data []byte, into any) {
	l.t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		l.t.Fatalf("%s: %v: %s", l.dir, err, data)
	}
}

// readImage is an image of one architecture: its configuration and the tar archive of each layer.
type readImage struct {
	config imageConfig
	layers [][]byte
}

// images returns the images of a layout by platform, and the annotations of its one entry. Every digest must be right,
// and every blob must belong to an image.
func (l *ociLayout) images() (map[string]readImage, map[string]string) {
	l.t.Helper()
	var version struct{ ImageLayoutVersion string }
	l.decode(l.file("oci-layout"), &version)
	if version.ImageLayoutVersion != "1.0.0" {
		l.t.Errorf("%s: version %q of the layout", l.dir, version.ImageLayoutVersion)
	}
	var top, platforms index
	l.decode(l.file("index.json"), &top)
	if len(top.Manifests) != 1 {
		l.t.Fatalf("%s: index.json has %d entries, want 1", l.dir, len(top.Manifests))
	}
	l.decode(l.blob(top.Manifests[0], indexType), &platforms)
	images := map[string]readImage{}
	for _, d := range platforms.Manifests {
		var m manifest
		l.decode(l.blob(d, manifestType), &m)
		var image readImage
		l.decode(l.blob(m.Config, configType), &image.config)
		if d.Platform == nil || *d.Platform != struct{ OS, Architecture string }{image.config.OS, image.config.Architecture} {
			l.t.Errorf("%s: the index says %v, the image %s/%s", l.dir, d.Platform, image.config.OS,
				image.config.Architecture)
		}
		var ids []string
		for _, layer := range m.Layers {
			data := l.unzip(l.blob(layer, layerType))
			ids = append(ids, digest(data))
			image.layers = append(image.layers, data)
		}
		if image.config.RootFS.Type != "layers" || strings.Join(ids, " ") != strings.Join(image.config.RootFS.DiffIDs, " ") {
			l.t.Errorf("%s: layers %v, but diff_ids %v", l.dir, ids, image.config.RootFS.DiffIDs)
		}
		images[image.config.OS+"/"+image.config.Architecture] = image
	}
	blobs, err := os.ReadDir(filepath.Join(l.dir, "blobs", "sha256"))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, blob := range blobs {
		if !l.read[blob.Name()] {
			l.t.Errorf("%s: no image has the blob %s", l.dir, blob.Name())
		}
	}
	return images, top.Manifests[0].Annotations
}

func (l *ociLayout) file(name string) []byte {
	l.t.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir, name))
	if err != nil {
		l.t.Fatal(err)
	}
	return data
}

func (l *ociLayout) unzip(data []byte) []byte {
	l.t.Helper()
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		l.t.Fatal(err)
	}
	plain, err := io.ReadAll(reader)
	if err != nil {
		l.t.Fatal(err)
	}
	return plain
}

// entries lists mode, owner, time and name of everything in a layer.
func entries(t *testing.T, layer []byte) []string {
	t.Helper()
	var lines []string
	walkTar(t, layer, func(h *tar.Header, _ io.Reader) {
		lines = append(lines, fmt.Sprintf("%v %d:%d %d %s", h.FileInfo().Mode(), h.Uid, h.Gid, h.ModTime.Unix(), h.Name))
		if h.Uname != "" || h.Gname != "" || len(h.PAXRecords) > 0 {
			t.Errorf("%s: user %q, group %q, records %v", h.Name, h.Uname, h.Gname, h.PAXRecords)
		}
	})
	return lines
}

func walkTar(t *testing.T, layer []byte, visit func(*tar.Header, io.Reader)) {
	t.Helper()
	for reader := tar.NewReader(bytes.NewReader(layer)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		visit(header, reader)
	}
}

// extract writes the layers into a new directory, without the owners.
func (i readImage) extract(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, layer := range i.layers {
		walkTar(t, layer, func(h *tar.Header, content io.Reader) {
			path := filepath.Join(root, filepath.FromSlash(h.Name))
			if h.Typeflag == tar.TypeDir {
				if err := os.Mkdir(path, fs.FileMode(h.Mode)&fs.ModePerm); err != nil {
					t.Fatal(err)
				}
				return
			}
			data, err := io.ReadAll(content)
			if err == nil {
				err = os.WriteFile(path, data, fs.FileMode(h.Mode)&fs.ModePerm)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	return root
}
