package hypershift

import (
	"reflect"
	"strings"
	"testing"
)

// Hosting merges a status into the stored one. A part of the status that omits a member would keep the member's value
// of before, such as a message that is no longer true.
func TestPartsOfAStatusOmitNoMember(t *testing.T) {
	parts := []any{RestoreStatus{}, BackupStatus{}, UpgradeStatus{}, MoveStatus{}, SizeStatus{}, RotationStatus{}}
	for _, part := range parts {
		of := reflect.TypeOf(part)
		for i := range of.NumField() {
			f := of.Field(i)
			if _, options, _ := strings.Cut(f.Tag.Get("json"), ","); strings.Contains(options, "omit") {
				t.Errorf("%s.%s has the tag json:%q", of.Name(), f.Name, f.Tag.Get("json"))
			}
		}
	}
}
