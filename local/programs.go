package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"k8s.io/apimachinery/pkg/util/version"

	"atoll.dev/gitops"
	"atoll.dev/internal/pgsession"
)

// schemaLimit bounds the time for reading the schemas of the databases of a running region.
const schemaLimit = 10 * time.Second

// describeLimit bounds the time for `atoll describe-program`, in case the program hangs.
const describeLimit = time.Minute

// answerDelay is the time in which the answer of a program that has ended must be read. It is for a process that the
// program has left behind with its standard output.
const answerDelay = time.Second

// ProgramDescription is what `atoll describe-program` prints.
type ProgramDescription struct {
	Version string         `json:"version"`
	Schemas map[string]int `json:"schemas"` // the version of each schema that the program's databases have
}

// describeProgram runs a program of Atoll to read its version and its schemas.
func describeProgram(ctx context.Context, program string) (d ProgramDescription, err error) {
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "describe-program")
	cmd.Env, cmd.WaitDelay = baseEnv(), answerDelay
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &d)
	}
	if err != nil {
		return d, fmt.Errorf("%s does not print its version: %w", program, err)
	}
	return d, nil
}

// kubeVersion runs atoll-kube to read its version of Kubernetes, such as 1.36.3.
func kubeVersion(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "version")
	cmd.WaitDelay = answerDelay
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", program, err)
	}
	return strings.TrimPrefix(strings.TrimSpace(string(output)), "v"), nil
}

// versionForm is what the name of a directory of programs may be: no path. gitops checks the tree; a rendered file may
// have been edited.
var versionForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// RegionPrograms are the programs that a declared region runs, as the latest apply has chosen them.
type RegionPrograms struct {
	Dir    string       `json:"dir,omitempty"`    // VERSION/atoll and VERSION/atoll-kube of each version
	Chosen *Binaries    `json:"chosen,omitempty"` // nil: those of the supervisor
	Newest *Predecessor `json:"newest,omitempty"` // that has served; nil: no apply has chosen a version
}

// Predecessor has the versions that wrote the databases and the data of the management clusters of a region. The region
// runs no program that is older.
type Predecessor struct {
	Version    string         `json:"version"`
	Schemas    map[string]int `json:"schemas"`
	Kubernetes string         `json:"kubernetes"`
}

// choosePrograms returns the programs that the home is to have for a declaration, and what they are, nil when that does
// not matter. dir is the directory of programs; "" is that of the home. It changes nothing.
func (h Home) choosePrograms(ctx context.Context, d gitops.Declaration, dir string) (RegionPrograms, *Predecessor,
	error) {
	st, err := h.State()
	if err != nil && !errors.Is(err, ErrNoRegion) {
		return RegionPrograms{}, nil, err
	}
	if dir != "" {
		st.Programs.Dir = dir
	}
	if d.Versions.Atoll == "" && st.Programs.Dir == "" && st.Programs.Newest == nil {
		return st.Programs, nil, nil
	}
	own, err := findBinaries()
	if err != nil {
		return RegionPrograms{}, nil, err
	}
	known := []Binaries{own}
	if r, isRunning := h.supervisorRecord(); isRunning && r.Programs != nil && r.Programs.Atoll != own.Atoll {
		known = []Binaries{*r.Programs, own}
	}
	newest := st.Programs.Newest
	if schemas, err := h.readSchemas(ctx, st); err == nil && len(schemas) > 0 {
		// A version that did not serve may have changed no database, or some.
		read := Predecessor{Schemas: schemas}
		if newest != nil {
			read.Version, read.Kubernetes = newest.Version, newest.Kubernetes
		}
		newest = &read
	}
	next, description, err := st.Programs.choose(ctx, d, newest, known)
	if err == nil && st.Nodes != "" {
		err = checkNodes(st.Nodes, *next.Chosen)
	}
	return next, description, err
}

// readSchemas returns the versions of the schemas in the databases of a region whose PostgreSQL runs.
func (h Home) readSchemas(ctx context.Context, st State) (map[string]int, error) {
	if r, has := h.readRecord(postgresName); !has || !r.isAlive() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, schemaLimit)
	defer cancel()
	schemas := map[string]int{}
	for _, database := range []string{platformDatabase, clmDatabase, maestroDatabase} {
		conn, err := pgsession.Connect(ctx, databaseOf(st).DSN(database, database))
		if err != nil {
			return nil, err
		}
		rows, err := conn.Query(ctx, `select part, version from schema_version`)
		if err == nil {
			var part string
			var version int
			_, err = pgx.ForEachRow(rows, []any{&part, &version}, func() error {
				if part == "service" { // the service's own tables
					part = database
				}
				schemas[part] = max(schemas[part], version)
				return nil
			})
		}
		if err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))); err != nil {
			return nil, err
		}
	}
	return schemas, nil
}

// recordServing records that programs serve the region: nothing goes back behind them.
func (h Home) recordServing(programs *Predecessor) error {
	if programs == nil {
		return nil
	}
	unlock, err := h.lock("state.lock")
	if err != nil {
		return err
	}
	defer unlock()
	st, err := h.State()
	if err != nil || reflect.DeepEqual(st.Programs.Newest, programs) {
		return err
	}
	st.Programs.Newest = programs
	return h.saveState(st)
}

// choose returns the programs of the declared version, and what they are: the first of the known ones that has the
// version, else those in the directory of programs. When no version is declared, it is the first known one. The error
// has the file and line of the version, when its programs are not there or are older than the newest ones.
func (p RegionPrograms) choose(ctx context.Context, d gitops.Declaration, newest *Predecessor, known []Binaries) (
	RegionPrograms, *Predecessor, error) {
	version := d.Versions.Atoll
	bin, description, err := p.find(ctx, version, known)
	if err == nil && newest != nil {
		err = newest.isAhead(bin, description)
	}
	if err != nil {
		return p, nil, fmt.Errorf("%s: versions.atoll is %q: %w", d.At("versions", "atoll"), version, err)
	}
	p.Chosen = &bin
	return p, &Predecessor{description.Version, description.Schemas, bin.KubeVersion}, nil
}

// find finds the programs of a version; "" is any.
func (p RegionPrograms) find(ctx context.Context, version string, known []Binaries) (bin Binaries,
	d ProgramDescription, err error) {
	for _, bin := range known {
		// The program of a supervisor may be gone since it was started.
		if d, err = describeProgram(ctx, bin.Atoll); err == nil && (version == "" || d.Version == version) {
			bin.Version, bin.Kubes = version, kubesOf(ctx, bin, p.Dir)
			return bin, d, nil
		}
	}
	switch {
	case err != nil:
		return bin, d, err
	case !versionForm.MatchString(version):
		return bin, d, errors.New("that is no version")
	case p.Dir == "":
		return bin, d, fmt.Errorf("this program has the version %s: put atoll and atoll-kube of %s into DIR/%s, and name "+
			"DIR with --programs", d.Version, version, version)
	}
	below := filepath.Join(p.Dir, version)
	bin = Binaries{Version: version, Atoll: filepath.Join(below, "atoll"), Kube: filepath.Join(below, "atoll-kube")}
	for _, program := range []string{bin.Atoll, bin.Kube} {
		if !isProgram(program) {
			return bin, d, fmt.Errorf("there is no program %s: put atoll and atoll-kube of %s into %s%s", program, version,
				below, versionsIn(p.Dir))
		}
	}
	if bin.KubeVersion, err = kubeVersion(ctx, bin.Kube); err != nil {
		return bin, d, err
	}
	bin.Kubes = kubesOf(ctx, bin, p.Dir)
	d, err = describeProgram(ctx, bin.Atoll)
	if err == nil && d.Version != version {
		err = fmt.Errorf("%s has the version %s: put the programs of %s into %s", bin.Atoll, d.Version, version, below)
	}
	return bin, d, err
}

// isProgram reports whether a file is there and can be executed.
func isProgram(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// checkFiles returns an error when a program is not there any more.
func (b Binaries) checkFiles() error {
	for _, program := range []string{b.Atoll, b.Kube} {
		if !isProgram(program) {
			return fmt.Errorf("there is no program %s, which the region runs: put it back, or apply another versions.atoll",
				program)
		}
	}
	return nil
}

// versionsIn returns a text with the versions in a directory of programs.
func versionsIn(dir string) string {
	found, _ := filepath.Glob(filepath.Join(dir, "*", "atoll"))
	if len(found) == 0 {
		return ""
	}
	for i, program := range found {
		found[i] = filepath.Base(filepath.Dir(program))
	}
	return fmt.Sprintf(" (%s has %s)", dir, strings.Join(found, ", "))
}

// kubesOf returns the programs of Kubernetes by their releases: that of bin, and those in a directory of programs. A
// program that does not print its version is left out.
func kubesOf(ctx context.Context, bin Binaries, dir string) map[string]string {
	kubes := map[string]string{}
	if dir != "" {
		found, _ := filepath.Glob(filepath.Join(dir, "*", "atoll-kube"))
		for _, program := range found {
			if release, err := kubeVersion(ctx, program); err == nil {
				kubes[release] = program
			}
		}
	}
	if bin.KubeVersion != "" {
		kubes[bin.KubeVersion] = bin.Kube
	}
	return kubes
}

// isAhead returns an error when programs are older than the region: their services would refuse its databases, or its
// management clusters would refuse their data. An earlier version without another schema is permitted.
func (p Predecessor) isAhead(bin Binaries, d ProgramDescription) error {
	for _, part := range slices.Sorted(maps.Keys(p.Schemas)) {
		if knows, has := d.Schemas[part]; has && knows < p.Schemas[part] {
			return fmt.Errorf("the databases of the region do not go back: their schema %s has the version %d, and %s knows "+
				"%d; declare %sa newer version", part, p.Schemas[part], d.Version, knows, p.orNewerPrefix())
		}
	}
	have, err := version.ParseGeneric(p.Kubernetes)
	if err != nil {
		return nil // it is not known
	}
	if next, err := version.ParseGeneric(bin.KubeVersion); err == nil && next.LessThan(have) {
		return fmt.Errorf("the management clusters of the region have data of Kubernetes %s, and %s has %s; declare "+
			"%sa newer version", p.Kubernetes, d.Version, bin.KubeVersion, p.orNewerPrefix())
	}
	return nil
}

// orNewerPrefix begins the name of a version that is permitted, if one is known.
func (p Predecessor) orNewerPrefix() string {
	if p.Version == "" {
		return ""
	}
	return p.Version + " or "
}

// programs returns the programs that the region of a state runs. own are those of its supervisor.
func (st State) programs(own Binaries) Binaries {
	if st.Programs.Chosen != nil {
		return *st.Programs.Chosen
	}
	return own
}

// ProgramsDir returns the full path of a directory of programs.
func ProgramsDir(dir string) (string, error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(full); err != nil || !info.IsDir() {
		return "", fmt.Errorf("--programs %s: no directory; it has VERSION/atoll and VERSION/atoll-kube of each version", dir)
	}
	return full, nil
}
