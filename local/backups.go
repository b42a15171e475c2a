package local

import (
	"path/filepath"

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
	return t.service(Spec{
		Name: objectStoreName, Address: "http://" + t.address(objectStoreName), Phase: phaseBases,
		Args: []string{"object-store", "--listen", t.address(objectStoreName), "--dir", t.home.backupsDir()},
	}, objectStoreName, objectStoreName+"-ops")
}
