package pgsession

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Sessions of PostgreSQL are configured in one place. Tests and benchmarks may connect as they like.
func TestNoOtherPackageOpensSessions(t *testing.T) {
	dials := regexp.MustCompile(
		`\b(pgx|pgxpool|pgconn)\.(Connect|New|ParseConfig|ConnectWithOptions|ParseConfigWithOptions)\(|"database/sql"`)
	seen, files := false, 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.ToSlash(strings.TrimPrefix(path, "../../"))
		if d.IsDir() && (path == ".git" || path == "bin" || path == "bench" || path == "kube" ||
			d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		src, err := os.ReadFile("../../" + path)
		if err != nil {
			return err
		}
		found := dials.Find(src)
		if strings.HasPrefix(path, "internal/pgsession/") {
			seen = seen || found != nil
		} else if found != nil {
			t.Errorf("%s has %s: open sessions with internal/pgsession, which sets what statements rely on", path,
				found)
		}
		return nil
	})
	if err != nil || !seen || files < 50 {
		t.Errorf("%d files were read, internal/pgsession among them: %v; %v", files, seen, err)
	}
}
