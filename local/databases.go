package local

import (
	"path/filepath"

	"atoll.dev/internal/postgres"
)

// PlatformStore returns the address of the Platform API's database and the path of
// its sealing key, for the commands that use them.
func (h Home) PlatformStore() (dsn, sealKey string, err error) {
	st, err := h.State()
	if err != nil {
		return "", "", err
	}
	t := newTopology(h, st, Binaries{})
	return t.db.DSN(platformDatabase, platformDatabase), t.sealKey(), nil
}

// MaestroStore returns the address of Maestro's database and the path of the file of the keys that encrypt Secrets in
// works, for the commands that use them.
func (h Home) MaestroStore() (dsn, envelopeKeys string, err error) {
	st, err := h.State()
	if err != nil {
		return "", "", err
	}
	t := newTopology(h, st, Binaries{})
	return t.db.DSN(maestroDatabase, maestroDatabase), t.envelopeKeys(), nil
}

// Databases returns the addresses of the region's databases, by name, as their server's superuser.
func (h Home) Databases() (map[string]string, error) {
	st, err := h.State()
	if err != nil {
		return nil, err
	}
	t, addresses := newTopology(h, st, Binaries{}), map[string]string{}
	for _, name := range []string{platformDatabase, clmDatabase, maestroDatabase} {
		addresses[name] = t.db.DSN(name, postgres.Superuser)
	}
	return addresses, nil
}

func (t topology) sealKey() string { return t.home.Path("platform", "seal.key") }

func (t topology) envelopeKeys() string { return t.home.Path("maestro", "envelope.keys") }

// databaseOf returns the PostgreSQL server of a region.
func databaseOf(st State) *postgres.Cluster {
	return &postgres.Cluster{DataDir: filepath.Join(st.Postgres.Dir, "data"), SocketDir: st.Postgres.SocketDir,
		Port: 5432}
}
