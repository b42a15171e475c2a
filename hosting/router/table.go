package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"atoll.dev/internal/atomicfile"
)

// Route is the backend of a server name.
type Route struct {
	ServerName string `json:"server_name"`
	Backend    string `json:"backend,omitempty"` // HOST:PORT; "" only when asleep or not there yet
	Asleep     bool   `json:"asleep,omitempty"`  // nothing runs at Backend: wake it first
}

// table is all routes of a management cluster at one moment. It is a line of the
// answer to GET /routes, and the content of the router's file.
type table struct {
	Revision int64   `json:"revision"` // grows with each change, also across restarts of hosting
	Routes   []Route `json:"routes"`   // by name
}

// normalizeRoutes returns the routes with names in lower case, ordered by name. Of several routes of one name it
// returns the last.
func normalizeRoutes(routes []Route) []Route {
	byName := map[string]Route{}
	for _, r := range routes {
		r.ServerName = strings.ToLower(r.ServerName)
		byName[r.ServerName] = r
	}
	list := make([]Route, 0, len(byName))
	for _, r := range byName {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Route) int { return strings.Compare(a.ServerName, b.ServerName) })
	return list
}

// readTable reads the file that writeTable wrote; a table without routes when
// there is none.
func readTable(path string) (table, error) {
	var t table
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		return table{}, fmt.Errorf("routes: %s: %w", path, err)
	}
	return t, nil
}

// writeTable replaces the file, so that a kill at any moment leaves the old
// one or the new one.
func writeTable(path string, t table) error {
	data, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	return nil
}
