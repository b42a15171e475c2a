// Package storetest has the suite that each backup.Store passes. Only tests import it.
package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"atoll.dev/backup"
)

// exact is how much an age may differ from the true one: clocks of HTTP have seconds, and a test may be slow.
const exact = time.Minute

// Run checks the contract of a Store that has no objects. age makes its present objects so much older, by the clock of
// the store, and leaves the clock of this process alone.
func Run(t *testing.T, store backup.Store, age func(time.Duration)) {
	ctx := t.Context()
	const name, other = "suite/a", "suite/b"
	put := func(name, content string) {
		t.Helper()
		if err := store.Put(ctx, name, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	mustBeMissing := func(when string) {
		t.Helper()
		if content, err := store.Get(ctx, name); !errors.Is(err, backup.ErrNotFound) {
			t.Errorf("%s Get returns %q, %v", when, content, err)
		}
		if age, err := store.Age(ctx, name); !errors.Is(err, backup.ErrNotFound) {
			t.Errorf("%s Age returns %s, %v", when, age, err)
		}
		if err := store.Delete(ctx, name); err != nil {
			t.Errorf("%s Delete returns %v", when, err)
		}
	}
	mustBe := func(when, name, want string, age time.Duration) {
		t.Helper()
		if got, err := store.Get(ctx, name); err != nil || string(got) != want {
			t.Errorf("%s %s has %q, not %q, %v", when, name, got, want, err)
		}
		if got, err := store.Age(ctx, name); err != nil || (got-age).Abs() > exact {
			t.Errorf("%s %s has the age %s, not %s, %v", when, name, got, age, err)
		}
	}
	mustBeMissing("at first")
	put(name, "first")
	mustBe("at first", name, "first", 0)
	age(48 * time.Hour)
	put(other, "other")
	mustBe("two days later", name, "first", 48*time.Hour)
	mustBe("a new object", other, "other", 0)
	age(24 * time.Hour)
	mustBe("three days later", name, "first", 72*time.Hour)
	mustBe("a day later", other, "other", 24*time.Hour)
	put(name, "second")
	mustBe("replaced", name, "second", 0)
	if got, err := store.List(ctx, "suite/"); err != nil || !slices.Equal(got, []string{name, other}) {
		t.Errorf("the list is %q, %v", got, err)
	}
	if got, err := store.List(ctx, "suit/"); err != nil || len(got) > 0 {
		t.Errorf("the list of another prefix is %q, %v", got, err)
	}
	if err := store.Delete(ctx, name); err != nil {
		t.Fatal(err)
	}
	mustBeMissing("after Delete")
	if got, err := store.List(ctx, "suite/"); err != nil || !slices.Equal(got, []string{other}) {
		t.Errorf("after Delete the list is %q, %v", got, err)
	}
}
