package work

import (
	"encoding/json"
	"strings"
	"testing"
)

// Whoever seals, masks or applies a manifest must see the same kind in it.
func TestI11MembersThatDifferInTheCaseOfLettersAreRefused(t *testing.T) {
	for manifest, wrong := range map[string]string{
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`: "",
		`{"apiVersion":"v1","kind":"A","spec":{"Kind":"x"}}`:          "",
		`{"apiVersion":"v1","Kind":"Secret","data":{"a":"aHVudGVy"}}`: "Kind",
		`{"kind":"ConfigMap","Kind":"Secret"}`:                        "Kind",
		`{"apiversion":"v1","kind":"Secret"}`:                         "apiversion",
		`{"kind":"Secret","METADATA":{}}`:                             "METADATA",
		`{"\u212aind":"Secret"}`:                                      "\u212aind", // the Kelvin sign folds to k
	} {
		err := CheckMemberNames(json.RawMessage(manifest))
		if (err != nil) != (wrong != "") {
			t.Errorf("%s: %v", manifest, err)
		}
		if err != nil && (!strings.Contains(err.Error(), wrong) || strings.Contains(err.Error(), "aHVudGVy")) {
			t.Errorf("%s: %v", manifest, err)
		}
	}
	if CheckMemberNames(json.RawMessage(`{"kind":`)) == nil || CheckMemberNames(json.RawMessage(`[]`)) == nil {
		t.Error("no object is accepted")
	}
}
