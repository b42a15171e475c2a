package local

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"atoll.dev/cluster"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/filelock"
)

// stateFormat is the layout of the home that this binary writes. A home of an
// older format is brought forward on `up`; one of a newer format is refused.
const stateFormat = 1

// Home is the directory of one region on this machine.
//
//	region.json            the State: name, ports and management clusters
//	credentials.json       the first key pair, for `atoll env`
//	ca.pem                 the region's CA certificate
//	run/                   one record for each process, the supervisor's lock, the events of `up`
//	logs/                  one log for each process
//	pki/                   the CA; read by `atoll pki` and, for join tokens, by the supervisor
//	adapters/NAME/         an adapter of the user's own: config.yaml, task.yaml
//	platform/              the key that seals secrets
//	maestro/               the keys that encrypt Secrets in works
//	azure/                 the stand-in for Azure: client.json for programs, keys, certificates
//	backups/               the store of backups: objects/, credentials, backup.keys, store.yaml
//	identities/PROCESS/    key and certificate of a service
//	postgres/              the database, unless root runs the region (see State.Postgres)
//	management/NAME/       a management cluster's side: plane/, agent/
//	watch.git/             clone of the repository that `atoll region watch` follows, and the commit that it applied
type Home struct{ Dir string }

// State is the content of region.json.
type State struct {
	Format int    `json:"format"`
	ID     string `json:"id"`     // random; marks this home's processes
	Region string `json:"region"` // also the region of credential scopes
	// Environment is that of the declaration; "" in a home that `atoll up` made without one.
	Environment string                      `json:"environment,omitempty"`
	Ports       map[string]int              `json:"ports"`
	Clusters    []cluster.ManagementCluster `json:"management_clusters"`
	Created     int                         `json:"management_clusters_created"` // ever; the next one's number is one more
	Postgres    PostgresDirs                `json:"postgres"`

	// Settings are those of the declaration; nil in a home that `atoll up` made without one.
	Settings *Settings `json:"settings,omitempty"`

	// Programs are those that the declaration names.
	Programs RegionPrograms `json:"programs,omitzero"`

	// Insecure means that Maestro and CLM also have plain listeners on loopback,
	// without authentication.
	Insecure bool `json:"insecure_listen,omitempty"`

	// Azure means that the region also serves Azure Resource Manager, for which a stand-in runs.
	Azure bool `json:"azure,omitempty"`

	// WarmPlanes is how many planes wait for new clusters on each management cluster.
	WarmPlanes int `json:"warm_planes,omitempty"`

	// RecoverLostAfter is how long the agent of a management cluster is lost until its clusters are recovered on others,
	// such as 30m; "" is never.
	RecoverLostAfter string `json:"recover_lost_after,omitempty"`

	// Backups means that customers' planes are backed up to an object store, which is a process of the region.
	Backups bool `json:"backups,omitempty"`

	// Nodes is the default provider of the nodes of node pools: "local" when the region runs real nodes, else
	// "simulated" or "".
	Nodes string `json:"nodes,omitempty"`

	// Traces is the URL of an OTLP/HTTP collector that gets the spans of the
	// lifecycle manager and its adapters; "" is none.
	Traces string `json:"traces,omitempty"`
}

// PostgresDirs are the directories of the database. PostgreSQL refuses to run as
// root, so under root its directories lie outside the home, where its own user
// can reach them.
type PostgresDirs struct {
	Dir       string `json:"dir"` // the region's own; the data directory is below
	SocketDir string `json:"socket_dir"`
}

// ErrNoRegion means that the home holds no region yet.
var ErrNoRegion = errors.New("no region here")

// DefaultHome is /var/lib/atoll for root and ~/.local/share/atoll for others;
// ATOLL_HOME overrides both.
func DefaultHome() (string, error) {
	if dir := os.Getenv("ATOLL_HOME"); dir != "" {
		return dir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/atoll", nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "atoll"), nil
	}
	user, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("choosing a home: %w; name one with --home", err)
	}
	return filepath.Join(user, ".local", "share", "atoll"), nil
}

// OpenHome returns the home at dir, which need not exist yet. It opens no file.
func OpenHome(dir string) (Home, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Home{}, fmt.Errorf("home %s: %w", dir, err)
	}
	return Home{Dir: abs}, nil
}

// Path joins elements below the home.
func (h Home) Path(elem ...string) string {
	return filepath.Join(append([]string{h.Dir}, elem...)...)
}

// CAFile is the PEM file by which clients verify the region.
func (h Home) CAFile() string { return h.Path("ca.pem") }

// CADir is the directory of the region's CA.
func (h Home) CADir() string { return h.Path("pki") }

// AdminKubeconfig is the kubeconfig that the plane of a local management
// cluster wrote for its administrator.
func (h Home) AdminKubeconfig(mc cluster.ManagementCluster) string {
	return h.Path("management", string(mc), "plane", "admin.kubeconfig")
}

// State reads the state of the region. It returns ErrNoRegion when the home has none.
func (h Home) State() (State, error) {
	var st State
	data, err := os.ReadFile(h.Path("region.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return st, fmt.Errorf("%s: %w; start one with `atoll up`", h.Dir, ErrNoRegion)
	}
	if err != nil {
		return st, fmt.Errorf("home: %w", err)
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("home: %s is damaged: %w", h.Path("region.json"), err)
	}
	if st.Format > stateFormat {
		return st, fmt.Errorf("home %s was written by a newer atoll (format %d, this one knows %d): use that one",
			h.Dir, st.Format, stateFormat)
	}
	return st, nil
}

// saveState replaces region.json.
func (h Home) saveState(st State) error {
	st.Format = stateFormat
	return writeJSON(h.Path("region.json"), st)
}

var regionName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// create creates the directories of an empty home and its state.
func (h Home) create(region, environment string) (State, error) {
	if !regionName.MatchString(region) {
		return State{}, fmt.Errorf("region name %q: use lower-case letters, digits and '-', at most 63", region)
	}
	if entries, err := os.ReadDir(h.Dir); err == nil && len(entries) > 0 && !h.isPartialHome(entries) {
		return State{}, fmt.Errorf("home %s is not empty and holds no region: name an empty directory with --home",
			h.Dir)
	}
	for _, dir := range []string{"", "run", "logs", "pki", "platform", "identities", "management"} {
		if err := os.MkdirAll(h.Path(dir), 0o700); err != nil {
			return State{}, fmt.Errorf("home: %w", err)
		}
	}
	id := make([]byte, 6)
	rand.Read(id)
	st := State{ID: hex.EncodeToString(id), Region: region, Environment: environment, Ports: map[string]int{}}
	st.Postgres = h.postgresDirs(st.ID)
	return st, h.saveState(st)
}

// isPartialHome reports whether the entries are those of a home that create did not complete, so
// that the next `up` continues, or files that may be there before the first `up`: adapters and
// entities.yaml of an operator, and the clone of a watch.
func (h Home) isPartialHome(entries []os.DirEntry) bool {
	for _, e := range entries {
		switch name := e.Name(); {
		case e.IsDir() && (name == "run" || name == "logs" || name == "pki" || name == "platform" ||
			name == "identities" || name == "management" || name == "adapters" ||
			name == watchClone):
		case name == "entities.yaml":
		case strings.HasPrefix(name, "region.json"), atomicfile.IsTemp(name): // a killed writer leaves a temporary file
		default:
			return false
		}
	}
	return true
}

func (h Home) postgresDirs(id string) PostgresDirs {
	dir := h.Path("postgres")
	if os.Geteuid() == 0 {
		base := "/var/lib"
		if tmp := filepath.Clean(os.TempDir()); strings.HasPrefix(h.Dir, tmp+"/") {
			base = tmp
		}
		dir = filepath.Join(base, "atoll-postgres-"+id)
		return PostgresDirs{Dir: dir, SocketDir: filepath.Join(dir, "run")}
	}
	socket := filepath.Join(dir, "run")
	if len(socket) > 80 { // a Unix socket's path has 107 bytes
		socket = filepath.Join(os.TempDir(), fmt.Sprintf("atoll-%d-%s", os.Getuid(), id))
	}
	return PostgresDirs{Dir: dir, SocketDir: socket}
}

// lock locks a file below run until unlock: the supervisor holds supervisor.lock, a watch
// watch.lock, and who changes region.json state.lock. It fails at once with filelock.ErrLocked
// when another process holds the lock.
func (h Home) lock(name string) (unlock func(), err error) {
	if unlock, err = filelock.Try(h.Path("run", name)); err != nil {
		return nil, fmt.Errorf("home %s: %w", h.Dir, err)
	}
	return unlock, nil
}

// writeJSON replaces the file atomically and durably.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}
