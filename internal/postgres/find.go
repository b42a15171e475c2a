// Package postgres runs one PostgreSQL server from the binaries that are installed on this machine.
//
// It finds the binaries, initialises a data directory in a way that survives being killed, builds the command that a
// supervisor keeps alive, and makes databases with one owner each. The server listens on a Unix socket only, and runs
// as an unprivileged user when the caller is root, because PostgreSQL refuses to run as root.
//
// It is for one machine: the supervisor (local) and the tests (internal/pgtest) use it. Services must not import it:
// their configuration has a DSN, which in production names another PostgreSQL.
package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// MinVersion is the oldest major version of PostgreSQL that Atoll works with.
const MinVersion = 15

// ErrNotFound is the error when no usable server binaries are installed. The text of the error names the package to
// install.
var ErrNotFound = errors.New("postgresql server binaries not found")

// Binaries is one installed PostgreSQL.
type Binaries struct {
	Dir     string // holds postgres, initdb, and usually psql and pg_dump
	Version int    // major version
}

// Path returns the path of one program of this installation.
func (b Binaries) Path(program string) string { return filepath.Join(b.Dir, program) }

// installDirs are the directories in which distributions put server binaries; they are often not in
// PATH.
var installDirs = []string{
	"/usr/lib/postgresql/*/bin",             // Debian, Ubuntu
	"/usr/pgsql-*/bin",                      // Fedora, RHEL with PGDG packages
	"/usr/libexec/postgresql*",              // Alpine
	"/opt/homebrew/opt/postgresql@*/bin",    // macOS, Apple silicon
	"/usr/local/opt/postgresql@*/bin",       // macOS, Intel
	"/usr/local/pgsql/bin",                  // built from source
	"/nix/var/nix/profiles/default/bin",     // Nix
	"/run/current-system/sw/bin",            // NixOS
	"/Applications/Postgres.app/*/*/*/bin/", // Postgres.app
}

// Find returns the newest installed PostgreSQL of at least MinVersion. It looks at PATH, at the places where
// distributions put it, and asks pg_config. Without one, the error wraps ErrNotFound and names the package to install,
// and the setting that keeps the package from starting a server of its own.
func Find() (Binaries, error) {
	var dirs []string
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real // a link to postgres alone does not have the other programs beside it
		}
		dirs = append(dirs, filepath.Dir(p))
	}
	for _, pattern := range installDirs {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	if p, err := exec.LookPath("pg_config"); err == nil {
		if out, err := exec.Command(p, "--bindir").Output(); err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	return findNewest(dirs)
}

// findNewest returns the newest installation in some directories that is not older than MinVersion.
func findNewest(dirs []string) (Binaries, error) {
	var best Binaries
	var tooOld []string
	seen := map[string]bool{}
	for _, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		if seen[dir] {
			continue
		}
		seen[dir] = true
		version, ok := versionIn(dir)
		switch {
		case !ok:
		case version < MinVersion:
			tooOld = append(tooOld, fmt.Sprintf("%s is version %d", dir, version))
		case version > best.Version:
			best = Binaries{Dir: dir, Version: version}
		}
	}
	if best.Dir != "" {
		return best, nil
	}
	old := ""
	if len(tooOld) > 0 {
		old = " (" + strings.Join(tooOld, ", ") + ")"
	}
	return Binaries{},
		fmt.Errorf(
			"%w: PostgreSQL %d or newer is needed%s. On Debian or Ubuntu, as root, without letting the package start "+
				"a server:\n"+
				"  mkdir -p /etc/postgresql-common/createcluster.d\n"+
				"  echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/atoll.conf\n"+
				"  apt-get install postgresql\n"+
				"elsewhere install PostgreSQL's server package and put the directory of its 'postgres' and 'initdb' "+
				"into PATH",
			ErrNotFound, MinVersion, old)
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// versionIn returns the major version of the installation in dir, and false when dir has no complete one.
func versionIn(dir string) (int, bool) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0, false
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, false
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return 0, false
	}
	version, err := strconv.Atoi(string(m[1]))
	return version, err == nil
}
