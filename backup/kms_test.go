package backup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/envelope"
	"atoll.dev/envelope/kms"
	"atoll.dev/envelope/kms/kmstest"
	"atoll.dev/test/testsite"
)

// The backup of a plane goes over from a key file to a KMS plugin. A rotation of the plugin's key shows in the next
// chain. While the plugin is away the present chain goes on, hosting starts, and nothing counts as damaged.
func TestABackupIsEncryptedByAPlugin(t *testing.T) {
	server := kmstest.NewServer(t)
	both := writeConfig(t, "http://127.0.0.1:1", "kms: "+server.Endpoint())
	w := newWorld(t) // with the key file
	w.write(3, time.Millisecond)
	w.awaitStored()
	ofFile := w.f.State().Stored // a moment that the first chain has
	w.stop()

	w.restartWith(readConfigKeys(t, both))
	w.write(3, time.Millisecond)
	w.awaitStored()
	used := w.keyIDs()
	if len(used) != 2 || used[0] != "k1" || !strings.HasPrefix(used[1], "kms:") {
		t.Fatalf("the chains have the keys %q", used)
	}
	server.Rotate()
	w.f.Renew()
	testsite.Eventually(t, "the next chain has the new key", func() error {
		if used := w.keyIDs(); len(used) != 3 || used[2] == used[1] || !strings.HasPrefix(used[2], "kms:") {
			return fmt.Errorf("the chains have the keys %q", used)
		}
		return nil
	})

	server.Down()
	w.f.Renew()
	w.write(3, time.Millisecond)
	w.awaitStored()
	if s := w.f.State(); s.Failing != "" || len(w.keyIDs()) != 3 {
		t.Errorf("without the plugin: %+v, chains with the keys %q", s, w.keyIDs())
	}
	_, err := fetchWith(t, w.store, readConfigKeys(t, both), time.Time{})
	if !errors.Is(err, kms.ErrUnavailable) || errors.Is(err, ErrCorrupt) {
		t.Errorf("a restore without the plugin: %v", err)
	}
	w.stop()
	w.restartWith(readConfigKeys(t, both)) // as when hosting restarts meanwhile
	w.write(3, time.Millisecond)
	server.Up(t)
	w.awaitStored()

	for what, c := range map[string]struct {
		keys envelope.KMS
		at   time.Time
		want int64
	}{
		"the latest":                        {readConfigKeys(t, both), time.Time{}, w.etcd.revision()},
		"the latest, without the file":      {readConfigKeys(t, withoutFile(t, both)), time.Time{}, w.etcd.revision()},
		"what the file's key has encrypted": {readConfigKeys(t, both), ofFile, 3},
	} {
		if r, err := fetchWith(t, w.store, c.keys, c.at); err != nil || r.revision() != c.want {
			t.Errorf("%s: revision %d, want %d: %v", what, r.revision(), c.want, err)
		}
	}
	_, err = fetchWith(t, w.store, readConfigKeys(t, withoutFile(t, both)), ofFile)
	if err == nil || !strings.Contains(err.Error(), `"k1"`) {
		t.Errorf("without the file that has the key: %v", err)
	}
}

// restartWith starts a follower with other keys, in the place of one that has stopped.
func (w *world) restartWith(keys envelope.KMS) {
	o := w.f.o
	o.KMS = keys
	w.f = New(o)
	w.run()
}

// awaitStored waits until everything that was written can be restored.
func (w *world) awaitStored() {
	w.t.Helper()
	written := time.Now()
	testsite.Eventually(w.t, "everything is stored", func() error {
		if s := w.f.State(); !s.Stored.After(written) {
			return fmt.Errorf("state %+v, written at %s", s, written)
		}
		return nil
	})
}

// keyIDs returns the keys that wrap the data keys of the chains, the oldest chain first.
func (w *world) keyIDs() (ids []string) {
	w.t.Helper()
	chains, err := Chains(w.t.Context(), w.store, testPlane)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range chains {
		name := testPlane.prefix() + c.Name + "/" + manifestObject
		key, _, err := envelope.SplitDescribed(name, w.store.content(name))
		if err != nil {
			w.t.Fatal(err)
		}
		ids = append(ids, key.KeyID)
	}
	return ids
}

// readConfigKeys returns the keys that a configuration names, until the test ends.
func readConfigKeys(t *testing.T, path string) kms.Keys {
	t.Helper()
	_, keys, err := ReadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(keys.Close)
	return keys
}

// withoutFile returns a copy of a configuration beside it that names no key file.
func withoutFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.Split(string(content), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "key_file:")
	})
	if err := os.WriteFile(path+".plugin", []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path + ".plugin"
}
