package main

import (
	"bytes"
	"crypto/x509"
	"debug/elf"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// standIn is a small program in the place of atoll and atoll-kube, which take minutes to compile.
const standIn = `package main

import "os"

func main() { os.Stdout.WriteString("stand-in " + os.Args[1] + "\n") }
`

// other is the architecture that is not this machine's.
var other = map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]

// compileStandIn compiles the stand-in once for all tests.
var compileStandIn = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "stand-in")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(standIn), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return os.ReadFile(program)
})

// compilePrograms makes the directory of -programs: atoll for both architectures, atoll-kube for this machine's. The
// program of the other architecture is this one's with another machine in its header.
func compilePrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program, err := compileStandIn()
	if err != nil {
		t.Fatal(err)
	}
	native, foreign := filepath.Join(dir, "linux-"+runtime.GOARCH), filepath.Join(dir, "linux-"+other)
	mustWrite(t, filepath.Join(native, "atoll"), program)
	mustWrite(t, filepath.Join(native, "atoll-kube"), program)
	mustWrite(t, filepath.Join(foreign, "atoll"), forMachine(program, other))
	return dir
}

// forMachine changes the machine in the header of an ELF file.
func forMachine(program []byte, arch string) []byte {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	changed := bytes.Clone(program)
	binary.LittleEndian.PutUint16(changed[18:], uint16(machine))
	return changed
}

// dynamic changes the first part of an ELF file into the name of a dynamic linker.
func dynamic(program []byte) []byte {
	changed := bytes.Clone(program)
	parts := binary.LittleEndian.Uint64(changed[32:])
	binary.LittleEndian.PutUint32(changed[parts:], uint32(elf.PT_INTERP))
	return changed
}

func mustWrite(t *testing.T, path string, data []byte) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, data, 0o700) // the layer's mode is not that of the file
	}
	if err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// baseEntries are the files that every image has: mode, owner, time and name.
var baseEntries = []string{
	"drwxr-xr-x 0:0 0 etc/",
	"-rw-r--r-- 0:0 0 etc/group",
	"-rw-r--r-- 0:0 0 etc/passwd",
	"drwxr-xr-x 0:0 0 etc/ssl/",
	"drwxr-xr-x 0:0 0 etc/ssl/certs/",
	"-rw-r--r-- 0:0 0 etc/ssl/certs/ca-certificates.crt",
	"drwxr-xr-x 0:0 0 home/",
	"drwx------ 65532:65532 0 home/nonroot/",
	"dtrwxrwxrwx 0:0 0 tmp/",
	"drwxr-xr-x 0:0 0 usr/",
	"drwxr-xr-x 0:0 0 usr/local/",
	"drwxr-xr-x 0:0 0 usr/local/bin/",
}

// checkLayouts compares both layouts of a directory with what the charts need, and runs the programs of this machine's
// architecture as the version says.
func checkLayouts(t *testing.T, out string, platforms map[string][]string, args []string, want string) {
	t.Helper()
	entry := map[string]string{
		"atoll": "-rwxr-xr-x 0:0 0 usr/local/bin/atoll", "atoll-kube": "-rwxr-xr-x 0:0 0 usr/local/bin/atoll-kube",
	}
	for name, programs := range map[string][]string{"atoll": {"atoll"}, "atoll-hosting": {"atoll", "atoll-kube"}} {
		layout := &ociLayout{t: t, dir: filepath.Join(out, name), read: map[string]bool{}}
		found, annotations := layout.images()
		if annotations["org.opencontainers.image.ref.name"] == "" {
			t.Errorf("%s has no name: %v", layout.dir, annotations)
		}
		var have []string
		for platform, image := range found {
			have = append(have, platform)
			wantLayers := [][]string{baseEntries}
			for _, program := range programs {
				wantLayers = append(wantLayers, []string{entry[program]})
			}
			var layers [][]string
			for _, layer := range image.layers {
				layers = append(layers, entries(t, layer))
			}
			if diff := cmp.Diff(wantLayers, layers); diff != "" {
				t.Errorf("%s, %s: layers (-want +got):\n%s", name, platform, diff)
			}
			config := image.config
			if config.Created != "1970-01-01T00:00:00Z" || config.Config.User != "65532:65532" ||
				config.Config.WorkingDir != "/" || len(config.Config.Cmd) != 0 ||
				!slices.Equal(config.Config.Entrypoint, []string{"/usr/local/bin/atoll"}) ||
				config.Config.Labels["org.opencontainers.image.title"] != name ||
				config.Config.Labels["org.opencontainers.image.version"] == "" ||
				config.Config.Labels["org.opencontainers.image.revision"] == "" {
				t.Errorf("%s, %s: configuration %+v", name, platform, config)
			}
			if platform != "linux/"+runtime.GOARCH {
				continue
			}
			root := image.extract(t)
			cmd := exec.Command(filepath.Join(root, config.Config.Entrypoint[0]), args...)
			cmd.Env = config.Config.Env
			if got, err := cmd.CombinedOutput(); err != nil || string(got) != want {
				t.Errorf("%s %v prints %q (%v), want %q", name, args, got, err, want)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, platforms[name]) {
			t.Errorf("%s is for %v, want %v", name, have, platforms[name])
		}
	}
}

func TestLayoutsHaveTheFilesUserAndEntrypointOfTheCharts(t *testing.T) {
	programs := compilePrograms(t)
	build := func(out string) string {
		t.Helper()
		var printed bytes.Buffer
		err := run([]string{"-programs", programs, "-out", out, "-version", "1.2.3", "-revision", "abc"}, &printed)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(printed.String(), out, "OUT")
	}
	first, second := filepath.Join(t.TempDir(), "a", "image"), filepath.Join(t.TempDir(), "b")
	printed := build(first)
	checkLayouts(t, first, map[string][]string{
		"atoll": {"linux/amd64", "linux/arm64"}, "atoll-hosting": {"linux/" + runtime.GOARCH},
	}, []string{"--version"}, "stand-in --version\n")

	// Neither the times of files nor what a build before left changes a byte.
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(programs, "linux-amd64", "atoll"), later, later); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(second, "atoll", "oci-layout"), nil)
	mustWrite(t, filepath.Join(second, "atoll", "blobs", "sha256", "old"), nil)
	if again := build(second); again != printed || strings.Count(printed, "sha256:") != 3 {
		t.Errorf("two builds printed\n%sand\n%s", printed, again)
	}
	if diff := cmp.Diff(tree(t, first), tree(t, second)); diff != "" {
		t.Errorf("two builds differ:\n%s", diff)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	if dated := build(first); dated == printed {
		t.Error("SOURCE_DATE_EPOCH changes nothing")
	}
}

// tree returns the digest of each file below a directory by its name.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			files[name] = digest(mustRead(t, path))
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has %d files: %v", dir, len(files), err)
	}
	return files
}

func TestTheImageTrustsMozillasAuthorities(t *testing.T) {
	count := 0
	for rest := rootCertificates(); ; count++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err != nil || !certificate.IsCA {
			t.Errorf("certificate %d: %v", count, err)
		}
	}
	if count < 100 {
		t.Errorf("%d certificates", count)
	}
}

func TestABadDirectoryIsRefused(t *testing.T) {
	good := compilePrograms(t)
	program := mustRead(t, filepath.Join(good, "linux-"+runtime.GOARCH, "atoll"))
	made := func(files map[string][]byte) string {
		dir := t.TempDir()
		for name, data := range files {
			mustWrite(t, filepath.Join(dir, name), data)
		}
		return dir
	}
	native := "linux-" + runtime.GOARCH + "/"
	for _, c := range []struct {
		name          string
		programs, out string
		epoch, want   string
	}{
		{"no programs", made(nil), "", "", "has atoll and atoll-kube"},
		{"no atoll-kube", made(map[string][]byte{native + "atoll": program}), "", "", "has atoll and atoll-kube"},
		{"no atoll", made(map[string][]byte{native + "atoll-kube": program}), "", "", "no such file"},
		{"another architecture", made(map[string][]byte{
			native + "atoll": forMachine(program, other), native + "atoll-kube": program,
		}), "", "", "GOARCH=" + runtime.GOARCH},
		{"a dynamic program", made(map[string][]byte{
			native + "atoll": program, native + "atoll-kube": dynamic(program),
		}), "", "", "CGO_ENABLED=0"},
		{"not a program", made(map[string][]byte{native + "atoll": []byte("#!/bin/sh")}), "", "", "atoll: "},
		{"a directory with other files", good, made(map[string][]byte{"notes": nil}), "", "not an OCI layout"},
		{"a date", good, "", "2026-01-01", "SOURCE_DATE_EPOCH"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.out == "" {
				c.out = filepath.Join(t.TempDir(), "out")
			}
			before, _ := os.ReadDir(c.out)
			t.Setenv("SOURCE_DATE_EPOCH", c.epoch)
			err := run([]string{"-programs", c.programs, "-out", c.out}, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			after, _ := os.ReadDir(c.out)
			parent, _ := os.ReadDir(filepath.Dir(c.out))
			if len(after) != len(before) || slices.ContainsFunc(parent, func(e os.DirEntry) bool {
				return strings.HasPrefix(e.Name(), ".image.")
			}) {
				t.Errorf("the directory changed from %v to %v, beside %v", before, after, parent)
			}
		})
	}
}
