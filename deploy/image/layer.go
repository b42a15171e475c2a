package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// What the charts and deploy/Containerfile rely on.
const (
	nonroot      = 65532 // user and group
	searchPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	programDir   = "usr/local/bin"
	certificates = "etc/ssl/certs/ca-certificates.crt"
)

// The users and groups of the distroless images.
const (
	passwd = "root:x:0:0:root:/root:/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n" +
		"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
	group = "root:x:0:\nnobody:x:65534:\ntty:x:5:\nstaff:x:50:\nnonroot:x:65532:\n"
)

// entry is a directory or file of a layer, owned by root unless owner says otherwise.
type entry struct {
	name  string // without a slash in front; a directory has one at the end
	mode  int64
	owner int
	data  []byte // of a file that is not on disk
	from  string // a file on disk, or ""
}

// layerCache makes each layer once: images share layers.
type layerCache struct {
	options
	layers map[string]v1.Layer // by the program's path; the base by ""
}

// base returns the layer of the files that every image has. Time zones are in the program, which imports time/tzdata.
func (c *layerCache) base() (v1.Layer, error) {
	return c.layer("", []entry{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, data: []byte(group)},
		{name: "etc/passwd", mode: 0o644, data: []byte(passwd)},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: certificates, mode: 0o644, data: rootCertificates()},
		{name: "home/", mode: 0o755},
		{name: "home/nonroot/", mode: 0o700, owner: nonroot},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755},
		{name: "usr/local/", mode: 0o755},
		{name: programDir + "/", mode: 0o755},
	})
}

// program returns the layer of one program.
func (c *layerCache) program(path string) (v1.Layer, error) {
	return c.layer(path, []entry{{name: programDir + "/" + filepath.Base(path), mode: 0o755, from: path}})
}

func (c *layerCache) layer(key string, entries []entry) (v1.Layer, error) {
	if layer, ok := c.layers[key]; ok {
		return layer, nil
	}
	open := func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(c.writeTar(writer, entries)) }()
		return reader, nil
	}
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err == nil {
		c.layers[key] = layer
	}
	return layer, err
}

// writeTar writes the entries in their order.
func (c *layerCache) writeTar(w io.Writer, entries []entry) error {
	archive := tar.NewWriter(w)
	for _, e := range entries {
		if err := c.writeEntry(archive, e); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return archive.Close()
}

func (c *layerCache) writeEntry(archive *tar.Writer, e entry) error {
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner,
		Size: int64(len(e.data)), ModTime: c.created, Format: tar.FormatUSTAR,
	}
	var content io.Reader = bytes.NewReader(e.data)
	if e.name[len(e.name)-1] == '/' {
		header.Typeflag = tar.TypeDir
	}
	if e.from != "" {
		file, err := os.Open(e.from)
		if err != nil {
			return err
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		header.Size, content = info.Size(), file
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}

// rootCertificates returns Mozilla's certificate authorities as PEM, in the version that go.mod pins: those of the
// machine that builds would make other bytes on each machine. It leaves out authorities that Mozilla distrusts from a
// date on, because PEM cannot say so.
func rootCertificates() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // into memory: no error
		}
	}
	return text.Bytes()
}

// checkStatic refuses a program that cannot run in an image without a C library, or not on the architecture.
func checkStatic(path, arch string) error {
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer file.Close()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; file.Machine != want {
		return fmt.Errorf("%s is for %v, not for %s: build it with GOARCH=%s", path, file.Machine, arch, arch)
	}
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically: build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}
