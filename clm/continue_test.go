package clm

import (
	"fmt"
	"strings"
	"testing"
)

// A list of many pages is counted once, with its first page: the pages that continue it show that total.
func TestContinuedPagesAreNotCounted(t *testing.T) {
	a := start(t)
	for i := range 5 {
		a.cluster(fmt.Sprint("shop-", i))
	}
	first := a.do("GET", "/clusters?size=2", "").want(200)
	second := a.do("GET", "/clusters?size=2&continue="+first.at("continue"), "").want(200)
	if first.at("total") != "5" || second.at("total") != "5" || second.at("size") != "2" {
		t.Errorf("of 5 the first page shows %s, the second %s", first.at("total"), second.at("total"))
	}
	a.cluster("later")
	third := a.do("GET", "/clusters?size=2&continue="+second.at("continue"), "").want(200)
	if third.at("total") != "5" {
		t.Errorf("the third page was counted: %s", third.at("total"))
	}
	// A token of an earlier version has no total.
	_, token, _ := strings.Cut(first.at("continue"), ".")
	if page := a.do("GET", "/clusters?size=2&continue="+token, "").want(200); page.at("total") != "6" {
		t.Errorf("without a known total the page shows %s, want 6", page.at("total"))
	}
	a.do("GET", "/clusters?continue=5.x", "").want(400, "VAL-005")
	a.do("GET", "/clusters?size=2&page=3", "").want(200)
}
