package plane

import (
	"encoding/base64"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pemBlock is a block of PEM; nobody verifies it.
func pemBlock(kind string) string {
	return "-----BEGIN " + kind + "-----\nAAAA\n-----END " + kind + "-----\n"
}

// A kubeconfig in the form that a plane writes. "data" stands for the bytes of certificates and key.
const goodKubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"p",
"clusters":[{"name":"p","cluster":{"server":"https://127.0.0.1:30000","certificate-authority-data":"$CERT"}}],
"users":[{"name":"p","user":{"client-certificate-data":"$CERT","client-key-data":"$KEY"}}],
"contexts":[{"name":"p","context":{"cluster":"p","user":"p"}}]}`

// A plane that was taken over writes a kubeconfig that its reader must not follow.
func TestAHostileKubeconfigIsRefused(t *testing.T) {
	dir := t.TempDir()
	c := Config{Dir: dir, Address: "127.0.0.1:30000"}
	encode := func(text string) string {
		return strings.NewReplacer("$CERT", base64Of(pemBlock("CERTIFICATE")),
			"$KEY", base64Of(pemBlock("EC PRIVATE KEY"))).Replace(text)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, kubeconfigName), []byte(encode(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(goodKubeconfig)
	if _, err := c.RESTConfig(); err != nil {
		t.Fatalf("a kubeconfig as a plane writes it: %v", err)
	}
	for name, change := range map[string][2]string{
		"a command": {`"client-key-data"`,
			`"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/sh","interactiveMode":"Never"},
			"client-key-data"`},
		"a provider":            {`"client-key-data"`, `"auth-provider":{"name":"oidc"},"client-key-data"`},
		"a token":               {`"client-key-data"`, `"token":"x","client-key-data"`},
		"the file of a token":   {`"client-key-data"`, `"tokenFile":"/etc/shadow","client-key-data"`},
		"a password":            {`"client-key-data"`, `"username":"u","password":"p","client-key-data"`},
		"the file of a key":     {`"client-key-data"`, `"client-key":"/etc/shadow","client-key-data"`},
		"another user":          {`"client-key-data"`, `"as":"root","client-key-data"`},
		"the file of a CA":      {`"server"`, `"certificate-authority":"/etc/shadow","server"`},
		"no check of the CA":    {`"server"`, `"insecure-skip-tls-verify":true,"server"`},
		"a proxy":               {`"server"`, `"proxy-url":"http://127.0.0.1:1","server"`},
		"another name":          {`"server"`, `"tls-server-name":"x","server"`},
		"another server":        {`127.0.0.1:30000`, `127.0.0.1:5432`},
		"a path of the server":  {`127.0.0.1:30000`, `127.0.0.1:30000/../`},
		"a second user":         {`"users":[`, `"users":[{"name":"q","user":{"token":"x"}},`},
		"a second cluster":      {`"clusters":[`, `"clusters":[{"name":"q","cluster":{"server":"http://x"}},`},
		"no key":                {`"client-key-data":"$KEY"`, `"client-key-data":""`},
		"a key as certificate":  {`"client-certificate-data":"$CERT"`, `"client-certificate-data":"$KEY"`},
		"something that is not": {`"current-context":"p"`, `"current-context":"q"`},
	} {
		text := strings.Replace(goodKubeconfig, change[0], change[1], 1)
		if text == goodKubeconfig {
			t.Fatalf("%s: nothing changed", name)
		}
		write(text)
		if _, err := c.RESTConfig(); !errors.Is(err, ErrKubeconfig) {
			t.Errorf("%s: error %v, want %v", name, err, ErrKubeconfig)
		}
	}
	write(goodKubeconfig + strings.Repeat(" ", kubeconfigLimit))
	if _, err := c.RESTConfig(); err == nil {
		t.Error("a large file was read")
	}
	path := filepath.Join(dir, kubeconfigName)
	if err := errors.Join(os.Rename(path, filepath.Join(dir, "other")), os.Symlink("other", path)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RESTConfig(); err == nil {
		t.Error("a link was followed")
	}
}

func TestAHostileReadinessSaysLittle(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{
		`{"pid":1,"version":"v1.36.3","walls":["network","none\u001b[2J","files"]}`: "network files",
		`{"pid":1,"version":"v1.36.3-x\u001b[2J"}`:                                  "refused",
		`{"pid":1,"version":"` + strings.Repeat("v", readinessLimit) + `"}`:         "refused",
	} {
		if err := os.WriteFile(filepath.Join(dir, "ready"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := (Config{Dir: dir}).Readiness()
		if got := strings.Join(r.Walls, " "); want == "refused" && err == nil || want != "refused" && got != want {
			t.Errorf("%.60s: walls %q, %v; want %s", content, got, err, want)
		}
	}
}

// A lock that names a process of somebody else gives nobody the idea to end that process.
func TestALockNamesNoForeignProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	dir := t.TempDir()
	victim := exec.Command("sleep", "300")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = victim.Wait()
	}()
	defer func() { _ = victim.Process.Kill(); <-ended }()
	for _, name := range []string{"lock", "process"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(strconv.Itoa(victim.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	if pid, ok := Running(dir); ok {
		t.Errorf("process %d counts as the plane", pid)
	}
	if !Alive(dir) {
		t.Error("a plane whose process holds its lock is not alive")
	}
	none := func(int) bool { return false }
	if err := KillStrays(dir, []int{victim.Process.Pid, os.Getpid(), 1}, none); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
		t.Error("the process of somebody else was ended")
	case <-time.After(50 * time.Millisecond):
	}

	// A plane's own process is found by its command line, whatever the lock says.
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "serve"), []byte("read line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("sh", "serve", "--data-dir", dir)
	stray.Dir = work
	input, err := stray.StdinPipe() // it ends with this process in any case
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	for limit := time.After(3 * time.Minute); !servesFrom(stray.Process.Pid, dir); { // until it is executed
		select {
		case <-limit:
			t.Fatal("the command line does not show the directory")
		case <-time.After(time.Millisecond):
		}
	}
	if servesFrom(stray.Process.Pid, t.TempDir()) {
		t.Error("a process counts as the plane of another directory")
	}
	if err := KillStrays(dir, []int{stray.Process.Pid}, none); err != nil {
		t.Error(err)
	}
	_ = stray.Wait()
}

// The socket of a store may be a link to the socket of another plane.
func TestTheStoreOfAnotherPlaneIsNotReached(t *testing.T) {
	top := t.TempDir()
	t.Chdir(top) // names of sockets are short
	l, err := net.Listen("unix", socketName)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := filepath.Join(top, "hostile")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink("../"+socketName, filepath.Join(dir, socketName))); err != nil {
		t.Fatal(err)
	}
	if s, err := (Config{Dir: dir}).StoreStatus(t.Context()); err == nil {
		t.Errorf("it answered: %+v", s)
	}
	if err := l.(*net.UnixListener).SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if c, err := l.Accept(); err == nil {
		c.Close()
		t.Error("the socket of another plane got a connection")
	}
}

func base64Of(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
