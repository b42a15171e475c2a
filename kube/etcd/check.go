package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

// checkDatabase finds, before etcd maps the database into memory, the damage that would kill the process there: a file
// that is no database or that was cut short.
func checkDatabase(dir string) (err error) {
	path := filepath.Join(dir, "member", "snap", "db")
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s is %w: %v", path, ErrDamaged, r)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second, PreLoadFreelist: false})
	if err != nil {
		return fmt.Errorf("%s is %w: %w", path, ErrDamaged, err)
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		if info.Size() < tx.Size() {
			return fmt.Errorf("%s is %w: %d bytes, should be %d", path, ErrDamaged, info.Size(), tx.Size())
		}
		return nil
	})
}
