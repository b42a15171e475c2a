package backup_test

import (
	"testing"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
)

func TestAStoreInMemoryIsAStore(t *testing.T) {
	store := backup.NewMemoryStore()
	storetest.Run(t, store, store.Advance)
}

func TestAnS3StoreIsAStore(t *testing.T) {
	url, clock := backup.StartS3(t, nil)
	store, _, err := backup.ReadConfig(backup.WriteConfig(t, url))
	if err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, store, clock.Advance)
}
