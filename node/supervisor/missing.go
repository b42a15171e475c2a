package supervisor

import (
	"errors"
	"fmt"
	"strings"
)

// Missing is one thing that this machine lacks for real nodes.
type Missing struct {
	Part    string `json:"part"`              // root, cgroups, overlayfs, runc, nft, ...
	Reason  string `json:"reason"`            // what was tried, and what came of it
	Install string `json:"install,omitempty"` // what the person who runs this can do
}

// MissingError returns one error of all missing parts, nil when there are none.
func MissingError(missing []Missing) error {
	var lines []string
	for _, m := range missing {
		line := fmt.Sprintf("%s: %s", m.Part, m.Reason)
		if m.Install != "" {
			line += "; " + m.Install
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New("this machine cannot run real nodes: " + strings.Join(lines, "; "))
}
