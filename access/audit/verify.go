package audit

import (
	"context"
	"encoding/json"
	"fmt"
)

// Verified describes a chain in which Verify found no error.
type Verified struct {
	Records int64  // how many Verify read
	First   int64  // Seq of the first record; 0 without records
	Head    Anchor // the last record; a later Verify that gets it as expect also finds that somebody replaced the chain
}

// BrokenError names the first record of a chain that somebody removed, altered or moved.
type BrokenError struct {
	Seq    int64
	Reason string
}

func (e *BrokenError) Error() string { return fmt.Sprintf("audit record %d: %s", e.Seq, e.Reason) }

// Verify reads the chain from its first record and checks each hash. read returns the records after a Seq, the oldest
// first, and a page without records at the end. expect is the head of an earlier Verify, or zero.
//
//   - If all records are as they were appended, it returns the chain's length and ends.
//   - If a record is missing, altered or in another place, the error is a *BrokenError with the first such record.
//   - If the chain does not have the record expect, the error is a *BrokenError: somebody replaced the chain.
//   - If read fails, it returns that error.
func Verify(ctx context.Context, expect Anchor, read func(ctx context.Context, after int64) (Page, error)) (Verified,
	error) {
	page, err := read(ctx, 0)
	if err != nil {
		return Verified{}, err
	}
	at, begin := page.Anchor, page.Anchor
	var v Verified
	isAnchored, isExpected := begin.Seq == 0, expect.Seq == 0 || expect.Seq < begin.Seq || expect == begin
	for len(page.Entries) > 0 {
		if page.Anchor != begin { // a trim ran meanwhile; its record comes later in the chain
			begin, isAnchored = page.Anchor, false
			if at.Seq < begin.Seq {
				at = begin
			}
		}
		for _, e := range page.Entries {
			if err := checkNext(at, e); err != nil {
				return v, err
			}
			at = Anchor{Seq: e.Seq, Hash: e.Hash}
			if v.Records++; v.First == 0 {
				v.First = e.Seq
			}
			if e.Seq == expect.Seq {
				if isExpected = e.Hash == expect.Hash; !isExpected {
					return v, &BrokenError{e.Seq, "its hash is not the expected one: the chain was replaced"}
				}
			}
			var r Record
			if err := json.Unmarshal(e.Record, &r); err != nil {
				return v, &BrokenError{e.Seq, "it is not JSON: " + err.Error()}
			}
			if r.Action == actionTrim && r.Anchor != nil && *r.Anchor == begin {
				isAnchored = true
			}
		}
		if page, err = read(ctx, at.Seq); err != nil {
			return v, err
		}
	}
	v.Head = at
	switch {
	case page.Head.Seq != at.Seq:
		return v, &BrokenError{at.Seq + 1, fmt.Sprintf("removed: the chain ends with %d, its head is %d", at.Seq,
			page.Head.Seq)}
	case page.Head.Hash != at.Hash:
		return v, &BrokenError{at.Seq, "it is not the one that the head of the chain names"}
	case !isAnchored:
		return v, &BrokenError{begin.Seq, "removed, with those before it: no record names it as deleted by age"}
	case !isExpected:
		return v, &BrokenError{expect.Seq, "removed: it was the expected one"}
	}
	return v, nil
}

// checkNext returns a *BrokenError if the entry e does not follow the record after, or e's hash is wrong.
func checkNext(after Anchor, e Entry) error {
	switch {
	case e.Seq != after.Seq+1:
		return &BrokenError{after.Seq + 1, fmt.Sprintf("removed: %d follows %d", e.Seq, after.Seq)}
	case e.Previous != after.Hash:
		return &BrokenError{e.Seq, "it does not follow the record before it: one of them was altered or moved"}
	case e.Hash != hashOf(e.Previous, e.Seq, e.Record):
		return &BrokenError{e.Seq, "altered: its hash is of another content"}
	}
	return nil
}
