package apiserver

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/klog/v2"

	"atoll.dev/kube/credentials"
)

// auditPath answers a GET with the plane's audit log, the oldest event first: one audit.k8s.io/v1 Event in JSON
// a line. Whoever has the right to get this URL reads it: cluster-admin has, view and edit do not.
const auditPath = "/atoll.dev/audit"

const (
	auditPolicyFile = "policy.yaml"
	auditLogFile    = "audit.log"
	// At most 60 MiB for a plane, and 30 days.
	auditFileMiB  = 10
	auditOldFiles = 5
	auditDays     = 30
)

//go:embed auditpolicy.yaml
var auditPolicy []byte

func writeAuditPolicy(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return credentials.WriteFile(filepath.Join(dir, auditPolicyFile), auditPolicy, 0o600)
}

type auditHandler struct{ dir string }

func (h auditHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "GET reads the audit log", http.StatusMethodNotAllowed)
		return
	}
	if problem := checkAuditQuery(r.URL.RawQuery); problem != "" {
		http.Error(w, problem, http.StatusBadRequest)
		return
	}
	files, err := openAuditLog(h.dir)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		klog.ErrorS(err, "The audit log cannot be read")
		http.Error(w, "the audit log cannot be read", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	for _, f := range files {
		if _, err := io.Copy(w, f); err != nil {
			return // the client went away
		}
	}
}

// checkAuditQuery returns the problem of a query, or "". A parameter that would select events is refused: whoever sends
// it must not take the whole log for the selection.
func checkAuditQuery(query string) string {
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return "the query cannot be read"
	}
	for name := range parameters {
		if name != "timeout" { // client-go sends its time limit
			return fmt.Sprintf("the parameter %q is unknown: the audit log is read as a whole", name)
		}
	}
	return ""
}

// openAuditLog opens the files of the log, the oldest first. Files that are renamed or removed after that are
// read to their end.
func openAuditLog(dir string) (files []*os.File, err error) {
	// The present file first: when it is renamed meanwhile, the list of the old ones has it as well, and it is
	// left out there.
	current, err := os.Open(filepath.Join(dir, auditLogFile))
	if errors.Is(err, fs.ErrNotExist) {
		current = nil
	} else if err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(dir, "audit-*.log")) // with the time of the rotation
	slices.Sort(old)
	for _, path := range old {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			if current != nil {
				current.Close()
			}
			return files, err
		}
		if isSame(f, current) {
			f.Close()
			continue
		}
		files = append(files, f)
	}
	if current != nil {
		files = append(files, current)
	}
	return files, err
}

// isSame reports whether two open files are one.
func isSame(a, b *os.File) bool {
	if b == nil {
		return false
	}
	x, err := a.Stat()
	y, err2 := b.Stat()
	return err == nil && err2 == nil && os.SameFile(x, y)
}
