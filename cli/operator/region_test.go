package operator

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/backup/region"
	"atoll.dev/cli/terminal"
)

func TestADamagedRegionHidesNoWindowsOfOthers(t *testing.T) {
	damaged := errors.New("damaged")
	windows, err := allWindows([]string{"a", "b", "c"}, func(name string) ([]region.Window, error) {
		if name == "b" {
			return nil, damaged
		}
		return []region.Window{{Region: name}}, nil
	})
	if !errors.Is(err, damaged) || !strings.Contains(err.Error(), "region b") || len(windows) != 2 ||
		windows[1].Region != "c" {
		t.Errorf("the windows are %v, %v", windows, err)
	}
}

// TestRegionsOfTwoEnvironmentsHaveTwoHomes: the first region of a name has the short path, one of another environment a
// path with its environment, which it keeps when the first is purged.
func TestRegionsOfTwoEnvironmentsHaveTwoHomes(t *testing.T) {
	base := filepath.Join(t.TempDir(), "atoll")
	session := &terminal.Session{HomeDir: base}
	all := base + "-regions"
	hold := func(name, environment string) {
		t.Helper()
		dir := filepath.Join(all, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		state := []byte(`{"format": 1, "id": "a", "region": "r1", "environment": "` + environment + `"}`)
		if err := os.WriteFile(filepath.Join(dir, "region.json"), state, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(environment, region, want string) {
		t.Helper()
		home, err := regionHome(session, environment, region)
		if err != nil || home.Dir != filepath.Join(all, want) {
			t.Errorf("%s/%s has the home %s, %v, want %s", environment, region, home.Dir, err, want)
		}
	}
	check("staging", "r1", "r1")
	hold("r1", "staging")
	check("staging", "r1", "r1")
	check("", "r1", "r1")
	check("production", "r1", "production.r1")
	hold("production.r1", "production")
	if err := os.RemoveAll(filepath.Join(all, "r1")); err != nil {
		t.Fatal(err)
	}
	check("production", "r1", "production.r1")
	check("staging", "r1", "r1")
	session.HomeIsGiven = true
	if home, err := regionHome(session, "staging", "r1"); err != nil || home.Dir != base {
		t.Errorf("with --home: %s, %v", home.Dir, err)
	}
}
