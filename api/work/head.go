package work

import (
	"encoding/json"
	"fmt"
	"strings"

	"atoll.dev/internal/jsonscan"
)

// CheckMemberNames returns an error when a manifest has a member whose name differs from apiVersion, kind or metadata
// only in the case of letters. Package encoding/json takes such a member for the other one, and Kubernetes does not: a
// manifest with "Kind" would be a Secret for one reader and not for the next, and its values would be neither sealed
// nor masked. The error names the member, and no value.
func CheckMemberNames(manifest json.RawMessage) (err error) {
	s := jsonscan.New(manifest)
	s.Object(func(key string) {
		s.Skip()
		for _, name := range []string{"apiVersion", "kind", "metadata"} {
			if key != name && strings.EqualFold(key, name) && err == nil {
				err = fmt.Errorf("the member %q is not one of a Kubernetes object; write %s", key, name)
			}
		}
	})
	if scanErr := s.End(); err == nil && scanErr != nil {
		err = fmt.Errorf("not a Kubernetes object: %w", scanErr)
	}
	return err
}
