package local

import (
	"path/filepath"

	"atoll.dev/internal/postgres"
	"atoll.dev/local/objectstore"
)

const objectStoreName = "object-store"

// BackupStore returns the file that names the store of backups, for `atoll backup`; "" when the region makes none.
func (h Home) BackupStore() string {
	st, err := h.State()
	if err != nil || !st.Backups {
		return ""
	}
	return filepath.Join(h.backupsDir(), objectstore.StoreFile)
}

func (h Home) backupsDir() string { return h.Path("backups") }

// objectStore returns the process that keeps the backups of customers' planes. It makes the file that hosting reads at
// its start.
func (t topology) objectStore() Spec {
	return t.completeService(Spec{
		Name: objectStoreName, Address: "http://" + t.address(objectStoreName), Phase: phaseBases,
		Args: []string{"object-store", "--listen", t.address(objectStoreName), "--dir", t.home.backupsDir()},
	}, objectStoreName, objectStoreName+"-ops")
}

// auditExport returns the flags with which the Platform API copies audit records to the store.
func (t topology) auditExport() []string {
	return []string{"--audit-export", filepath.Join(t.home.backupsDir(), objectstore.StoreFile), "--audit-export-every",
		"10s"}
}

const regionBackupName = "region-backup"

// regionFiles are the names in the home that a copy of the region has besides its databases. Services enrol again when
// they have no identity; management clusters are elsewhere.
var regionFiles = []string{"region.json", "credentials.json", "ca.pem", "pki", "platform", "maestro", "azure",
	"adapters", "entities.yaml"}

// regionBackup returns the process that copies the databases and the files of the region to the store.
func (t topology) regionBackup() Spec {
	args := []string{"region-backup", "--region", t.st.Region, "--store",
		filepath.Join(t.home.backupsDir(), objectstore.StoreFile), "--dsn", t.db.DSN("postgres", postgres.Superuser)}
	for _, name := range regionFiles {
		args = append(args, "--file", name+"="+t.home.Path(name))
	}
	return t.completeService(Spec{
		Name: regionBackupName, Phase: phaseBases, After: []string{postgresName, objectStoreName}, Args: args,
	}, regionBackupName+"-ops")
}
