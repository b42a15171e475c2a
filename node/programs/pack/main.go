// Command pack writes an image with one static program as an archive in OCI layout, without a container engine:
//
//	pack -name atoll.dev/demo:v1 -program demo -out demo-image.tar
//
// The same program gives the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Media types of the specification of OCI images, version 1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

func main() {
	name := flag.String("name", "", "`name` of the image, with its tag")
	program := flag.String("program", "", "static `program`, the only file and the entrypoint")
	out := flag.String("out", "", "`file` to write")
	flag.Parse()
	if err := pack(*name, *program, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// descriptor names one blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// layout gathers the files of the archive.
type layout struct{ files []file }

type file struct {
	path string
	data []byte
	mode int64
}

// addBlob adds data below blobs/ and returns its descriptor.
func (l *layout) addBlob(mediaType string, data []byte) descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	l.files = append(l.files, file{"blobs/sha256/" + sum, data, 0o644})
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}
}

// addJSON adds a value below blobs/ and returns its descriptor.
func (l *layout) addJSON(mediaType string, value any) (descriptor, error) {
	data, err := json.Marshal(value)
	return l.addBlob(mediaType, data), err
}

func pack(name, program, out string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	entrypoint := filepath.Base(program)
	layer, err := writeTar([]file{{entrypoint, binary, 0o755}})
	if err != nil {
		return err
	}
	var compressed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := zip.Write(layer); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}

	var l layout
	onMachine := platform{runtime.GOARCH, "linux"}
	layerBlob := l.addBlob(typeLayer, compressed.Bytes())
	configBlob, err := l.addJSON(typeConfig, map[string]any{
		"architecture": onMachine.Architecture,
		"os":           onMachine.OS,
		"config":       map[string]any{"Entrypoint": []string{"/" + entrypoint}, "User": "65532:65532", "WorkingDir": "/"},
		"rootfs": map[string]any{
			"type":     "layers",
			"diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		},
	})
	if err != nil {
		return err
	}
	manifest, err := l.addJSON(typeManifest, map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": configBlob, "layers": []descriptor{layerBlob},
	})
	if err != nil {
		return err
	}
	manifest.Platform = &onMachine
	manifest.Annotations = map[string]string{"io.containerd.image.name": name}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{manifest},
	})
	if err != nil {
		return err
	}
	l.files = append(l.files, file{"index.json", index, 0o644},
		file{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644})
	archive, err := writeTar(l.files)
	if err != nil {
		return err
	}
	return os.WriteFile(out, archive, 0o644)
}

// writeTar returns an archive of the files, without times and owners.
func writeTar(files []file) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.data)),
			Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}
