package work

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestReportsOfHostingInHeartbeats(t *testing.T) {
	for data, want := range map[string]string{
		``:                                "none",
		`{}`:                              "none",
		`{"hosting":null}`:                "none",
		`{"hosting":{"warm_planes":2}}`:   `{"warm_planes":2}`,
		`{"hosting":{"warm_planes":0}}`:   `{"warm_planes":0}`,
		`{"hosting":{"more":1},"more":1}`: `{"warm_planes":0}`, // a newer agent sends more
		`{"hosting":{"warm_planes":1,"capacity":{"planes":4}}}`: `{"warm_planes":1,"capacity":{"planes":4}}`,
		`[]`:                                                             "error",
		`{"hosting":2}`:                                                  "error",
		`{"hosting":{"warm_planes":-1}}`:                                 "error",
		`{"hosting":{"warm_planes":1e13}}`:                               "error",
		`{"hosting":{"capacity":{"planes":-1}}}`:                         "error",
		`{"hosting":{"capacity":{"":1}}}`:                                "error",
		`{"hosting":{"capacity":{"\u0000":1}}}`:                          "error",
		`{"hosting":{"capacity":{"\ud800":1}}}`:                          "error", // U+FFFD
		"{\"hosting\":{\"capacity\":{\"a\xff\":1}}}":                     "error",
		`{"hosting":{"capacity":{"a\n":1}}}`:                             "error",
		`{"hosting":{"capacity":{"` + strings.Repeat("x", 64) + `":1}}}`: "error",
		`{"hosting":{"warm_planes":1,"capacity":{"nvidia.com/gpu":4,"memory_mib":1}}}`: `{"warm_planes":1,"capacity":` +
			`{"memory_mib":1,"nvidia.com/gpu":4}}`,
		`{"hosting":{"x":"` + strings.Repeat("x", maxHostingReport) + `"}}`: "error",
	} {
		got := "none"
		r, err := ParseSeen([]byte(data))
		if err != nil {
			got = "error"
		} else if r != nil {
			text, _ := json.Marshal(r)
			got = string(text)
		}
		if got != want {
			t.Errorf("%.60s: %s, want %s (%v)", data, got, want, err)
		}
	}
	many := map[string]int64{}
	for i := range maxResources + 1 {
		many[fmt.Sprint(i)] = 1
	}
	data, _ := json.Marshal(SeenData{&HostingReport{Capacity: many}})
	if _, err := ParseSeen(data); err == nil {
		t.Error("a report with too many resources is accepted")
	}
}
