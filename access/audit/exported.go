package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ExportPrefix returns the prefix of the objects of a region's export.
func ExportPrefix(region string) string { return ".audit/" + region + "/" }

// objectName returns the name of the object with the records from first to last, without its prefix:
//
//	FIRST-LAST-HASH.jsonl
//
// FIRST and LAST are numbers of records with 20 digits, so that names are in the order of the chain. HASH is that of
// the last record. It covers all records before it, so one name has one content: whoever stores an object a second time
// stores the same bytes. A reader drops a record whose number and hash it has already.
func objectName(first int64, last Anchor) string {
	return fmt.Sprintf("%020d-%020d-%s.jsonl", first, last.Seq, last.Hash)
}

var exportName = regexp.MustCompile(`^(\d{20})-(\d{20})-([0-9a-f]{64})\.jsonl$`)

func parseObjectName(name string) (first int64, last Anchor, ok bool) {
	m := exportName.FindStringSubmatch(name)
	if m == nil {
		return 0, Anchor{}, false
	}
	first, err1 := strconv.ParseInt(m[1], 10, 64)
	seq, err2 := strconv.ParseInt(m[2], 10, 64)
	return first, Anchor{Seq: seq, Hash: m[3]}, err1 == nil && err2 == nil && first >= 1 && first <= seq
}

// ObjectReader reads the objects of an export.
type ObjectReader interface {
	// ListAfter returns at most limit names that begin with prefix and follow after, in the order of their bytes.
	ListAfter(ctx context.Context, prefix, after string, limit int) ([]string, error)
	Get(ctx context.Context, name string) ([]byte, error)
}

// Exported describes an export in which VerifyExport found no error.
type Exported struct {
	Objects  int
	Records  int64 // each once, those of replaced chains, too
	Repeated int64 // records that a kill made the exporter store again
	First    int64 // number of the first record; 0 without records
	Head     Anchor
	// Forks are the records that follow a record which another one follows, too: the region was restored as of an earlier
	// moment, or somebody replaced the chain of its database.
	Forks []int64
}

// exportCheck is a verification under way. known has the records that an object may begin after, or have again, by
// number: after a fork there are several. Their content is not kept.
type exportCheck struct {
	found    Exported
	expected Anchor
	known    map[int64][]Entry
}

// VerifyExport reads an export and checks each hash, as Verify does with the chain of a region. Its errors, too, are
// those of Verify; in addition, an object whose name does not fit its content is a *BrokenError. An export that begins
// with a later record than the first is complete from there on.
func VerifyExport(ctx context.Context, expect Anchor, prefix string, objects ObjectReader) (Exported, error) {
	check := exportCheck{expected: expect, known: map[int64][]Entry{}}
	isExpected := expect.Seq == 0
	for after := ""; ; {
		names, err := objects.ListAfter(ctx, prefix, after, 1000)
		if err != nil {
			return check.found, err
		}
		for _, name := range names {
			content, err := objects.Get(ctx, name)
			if err != nil {
				return check.found, err
			}
			if err := check.object(strings.TrimPrefix(name, prefix), content); err != nil {
				return check.found, err
			}
			isExpected = isExpected || check.has(expect)
			after = name
		}
		if len(names) == 0 {
			break
		}
	}
	if !isExpected {
		return check.found, &BrokenError{expect.Seq, "the export does not have the expected record"}
	}
	return check.found, nil
}

// has reports whether the check knows a record.
func (c *exportCheck) has(a Anchor) bool {
	return slices.ContainsFunc(c.known[a.Seq], func(e Entry) bool { return e.Hash == a.Hash })
}

// object checks the next object, in the order of names.
func (c *exportCheck) object(name string, content []byte) error {
	first, last, ok := parseObjectName(name)
	if !ok {
		return &BrokenError{c.found.Head.Seq + 1, fmt.Sprintf("object %q is none of an export", name)}
	}
	for seq := range c.known { // no later object begins before this one
		if seq < first-1 {
			delete(c.known, seq)
		}
	}
	at := Anchor{Seq: first - 1}
	for len(content) > 0 {
		line, rest, isLine := bytes.Cut(content, []byte("\n"))
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil || !isLine {
			return &BrokenError{at.Seq + 1, fmt.Sprintf("object %s does not have it whole", name)}
		}
		content = rest
		if at.Hash == "" { // the first record of the object
			at.Hash = e.Previous
			if err := c.begins(name, at); err != nil {
				return err
			}
		}
		if err := checkNext(at, e); err != nil {
			return fmt.Errorf("object %s: %w", name, err)
		}
		at = Anchor{Seq: e.Seq, Hash: e.Hash}
		if c.has(at) {
			c.found.Repeated++
			continue
		}
		if slices.ContainsFunc(c.known[e.Seq], func(k Entry) bool { return k.Previous == e.Previous }) {
			c.found.Forks = append(c.found.Forks, e.Seq)
		}
		c.known[e.Seq] = append(c.known[e.Seq], Entry{Seq: e.Seq, Previous: e.Previous, Hash: e.Hash})
		if c.found.Records++; c.found.First == 0 {
			c.found.First = e.Seq
		}
	}
	if at != last {
		return &BrokenError{at.Seq, fmt.Sprintf("object %s ends with it, and its name with record %d", name, last.Seq)}
	}
	if c.found.Objects++; last.Seq >= c.found.Head.Seq {
		c.found.Head = last
	}
	return nil
}

// begins returns a *BrokenError unless an object may begin after the record named after: one of another object, or the
// position before the first record of the chain. The first object may begin after any record.
func (c *exportCheck) begins(name string, after Anchor) error {
	switch {
	case c.found.Objects == 0 && after.Seq > 0, after == Anchor{Hash: noHash}, c.has(after):
		return nil
	case c.found.Head.Seq < after.Seq:
		return &BrokenError{c.found.Head.Seq + 1, fmt.Sprintf("removed, with those up to %d, or deleted by age before the "+
			"export: object %s begins after it", after.Seq, name)}
	}
	return &BrokenError{after.Seq, fmt.Sprintf("object %s begins after another one of that number", name)}
}
