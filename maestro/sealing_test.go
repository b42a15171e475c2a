package maestro

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/api/work"
	"atoll.dev/envelope"
	"atoll.dev/internal/pgtest"
)

// secretWork returns the data of a work with a Secret that has the value in each place that a Secret has, with Secrets
// in lists, and with a ConfigMap.
func secretWork(value string) []byte {
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	return specData(fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default",`+
		`"annotations":{"team":"web",%q:"{\"data\":\"%s\"}"}},"type":"Opaque","data":{"a":%q},"stringData":{"b":%q}}`,
		work.LastApplied, encoded, encoded, value), fmt.Sprintf(
		`{"apiVersion":"v1","kind":"SecretList","metadata":{"name":"l"},`+
			`"items":[{"metadata":{"name":"t"},"data":{"a":%q}}]}`, encoded),
		fmt.Sprintf(`{"apiVersion":"v1","kind":"List","metadata":{"name":"m"},"items":[{"kind":"Secret","apiVersion":"v1",`+
			`"metadata":{"name":"u"},"stringData":{"b":%q}}]}`, value), configMap("shown", "in clear"))
}

func TestI11SecretsInWorksAreSealedInTheDatabase(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	file := filepath.Join(t.TempDir(), "keys", "envelope.keys")
	if err := envelope.EnsureKeyFile(file); err != nil {
		t.Fatal(err)
	}
	keys, err := envelope.ReadKeyFile(file)
	if err != nil {
		t.Fatal(err)
	}
	plain := site.start() // as a region that stored works before it had a key
	plain.consumer("mc1")
	agent := site.agent("mc1")
	src := plain.source()
	create := func(id work.ID, value string) {
		t.Helper()
		if err := src.send(src.event(work.SpecCreate, "mc1", id, 0, secretWork(value))); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the agent has the Secret", func() error {
			if _, data := agent.holds(id); !strings.Contains(data, `"b":"`+value) && !strings.Contains(data, `"b": "`+value) {
				return fmt.Errorf("it has %s", data)
			}
			return nil
		})
	}
	create("old", "swordfish")
	if !strings.Contains(pgtest.Dump(t, site.dsn), "swordfish") {
		t.Fatal("the dump does not show what is stored in clear")
	}
	plain.end()

	m := site.start(func(o *Options) { o.Envelope = keys })
	src = m.source()
	create("new", "hunter2")
	if err := src.send(src.event(work.SpecUpdate, "mc1", "new", 0, secretWork("hunter3"))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the status of the change is stored", func() error {
		if b := m.bundle("new"); b.Version != 2 || b.Status.ObservedVersion != 2 {
			return fmt.Errorf("version %d, observed %d", b.Version, b.Status.ObservedVersion)
		}
		return nil
	})
	if b := m.bundle("new"); !strings.Contains(string(b.Manifests[0]), "hunter3") {
		t.Errorf("the region's services read %s", b.Manifests[0])
	}
	var values []string
	for _, value := range []string{"swordfish", "hunter2", "hunter3"} {
		values = append(values, value, base64.StdEncoding.EncodeToString([]byte(value)))
	}
	eventually(t, "no Secret is in clear", func() error {
		dump := pgtest.Dump(t, site.dsn)
		for _, value := range values {
			if at := strings.Index(dump, value); at >= 0 {
				return fmt.Errorf("the database has %q: %s", value, dump[max(0, at-80):at+20])
			}
		}
		if !strings.Contains(dump, "in clear") {
			return fmt.Errorf("the dump lacks the ConfigMap")
		}
		return nil
	})
	for search, want := range map[string]int{
		`payload -> 'data' -> 'manifests' @> '[{"stringData":{"b":"hunter3"}}]'`: 0,
		`payload -> 'data' -> 'manifests' @> '[{"kind":"Secret"}]'`:              2,
		`payload -> 'data' -> 'manifests' @> '[{"data":{"value":"in clear"}}]'`:  2,
	} {
		var list struct{ Total int }
		m.want(200, "GET", "/api/maestro/v1/resource-bundles?search="+url.QueryEscape(search), "").into(t, &list)
		if list.Total != want {
			t.Errorf("search %s finds %d works, want %d", search, list.Total, want)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file has mode %v, %v", info.Mode(), err)
	}
}
