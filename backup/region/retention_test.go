package region

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
	"atoll.dev/internal/quick"
)

var errDown = errors.New("the store is down")

// plainKMS wraps a data key as it is.
type plainKMS struct{}

func (plainKMS) Wrap(_ context.Context, key []byte) (envelope.WrappedKey, error) {
	return envelope.WrappedKey{KeyID: "k1", Ciphertext: key}, nil
}

func (plainKMS) Unwrap(_ context.Context, w envelope.WrappedKey) ([]byte, error) {
	return w.Ciphertext, nil
}

// copies writes the objects of archives of a region into a store.
type copies struct {
	t     *testing.T
	store *storetest.Memory
	box   *envelope.Box
}

func newCopies(t *testing.T) *copies {
	box, err := envelope.NewBox(t.Context(), plainKMS{})
	if err != nil {
		t.Fatal(err)
	}
	return &copies{t, storetest.NewMemory(), box}
}

var noon = time.Date(2027, 1, 20, 12, 0, 0, 0, time.UTC)

// day returns noon of a day; negative ones are past.
func day(n float64) time.Time { return noon.Add(time.Duration(n * float64(24*time.Hour))) }

const segment = 16 << 20

// archive returns the prefix of an archive that began on a day.
func (c *copies) archive(began float64, id string) string {
	return ".regions/r1/archive-" + day(began).Format(timeFormat) + "-" + id + "/"
}

func (c *copies) put(name string, text []byte) {
	object, err := c.box.Seal(name, text)
	if err == nil {
		err = c.store.Put(c.t.Context(), name, object)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// base writes a base backup that begins at a segment of the WAL, and returns its prefix.
func (c *copies) base(archive string, began, complete float64, at int) string {
	prefix := archive + basePrefix + day(began).Format(timeFormat) + "/"
	text, err := json.Marshal(Manifest{Region: "r1", Version: 15, Timeline: 1, SegmentSize: segment,
		Start: LSN(at*segment + 40), Complete: Sample{day(complete), LSN(at*segment + 300)}, Parts: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	c.put(prefix+partName(0), []byte("part"))
	c.put(prefix+manifestObject, text)
	return prefix
}

// wal writes the piece that is a segment, and returns its name.
func (c *copies) wal(archive string, covered float64, at int) string {
	name := archive + Piece{1, LSN(at * segment), LSN((at + 1) * segment), day(covered)}.name()
	c.put(name, []byte("wal"))
	return name
}

func (c *copies) damage(name string) { c.store.Replace(name, []byte("damaged")) }

// deleteExpired deletes objects that expire after a week, at noon of day 0. It returns the names of the deleted
// objects.
func (c *copies) deleteExpired(current string) (deleted []string, err error) {
	before := c.store.Objects()
	name := archive(strings.TrimSuffix(strings.TrimPrefix(current, ".regions/r1/"), "/"))
	o := Options{Region: "r1", Store: c.store, KMS: plainKMS{}, Keep: 7 * 24 * time.Hour}
	_, err = deleteExpired(c.t.Context(), o, name, noon)
	after := c.store.Objects()
	for _, object := range slices.Sorted(maps.Keys(before)) {
		if _, isThere := after[object]; !isThere {
			deleted = append(deleted, object)
		}
	}
	return deleted, err
}

func (c *copies) choose(at time.Time) (*restorer, error) {
	names, err := c.store.List(c.t.Context(), regionPrefix("r1"))
	if err != nil {
		c.t.Fatal(err)
	}
	archives, _ := sortContents("r1", names)
	r := &restorer{store: c.store, opener: envelope.NewOpener(plainKMS{}), region: "r1"}
	return r, r.choose(c.t.Context(), archives, at)
}

func TestDeleteExpiredKeepsWhatAnyMomentNeeds(t *testing.T) {
	const id, other = "00000001", "00000002"
	for _, test := range []struct {
		name  string
		write func(c *copies) (current string, want []string)
	}{
		{"the base backup that was complete a week ago", func(c *copies) (string, []string) {
			a := c.archive(-20, id)
			first, wal := c.base(a, -9, -8.9, 1), c.wal(a, -8.5, 1)
			c.base(a, -8, -7.9, 2)
			c.wal(a, -1, 2)
			return a, []string{first + manifestObject, first + partName(0), wal}
		}},
		{"the base backup before one that took until after the oldest moment", func(c *copies) (string, []string) {
			a := c.archive(-20, id)
			c.base(a, -8, -7.9, 1)
			c.wal(a, -7.1, 1)
			c.base(a, -7.1, -6.5, 2)
			c.wal(a, -1, 2)
			return a, nil
		}},
		{"parts of the base backup in progress, but not of one that failed", func(c *copies) (string, []string) {
			a := c.archive(-3, id)
			failed := a + basePrefix + day(-2.9).Format(timeFormat) + "/" + partName(0)
			c.put(failed, nil)
			c.base(a, -2, -1.9, 1)
			c.wal(a, -1, 1)
			c.put(a+basePrefix+day(-1).Format(timeFormat)+"/"+partName(0), nil)
			return a, []string{failed}
		}},
		{"an archive until a later one restores to all moments", func(c *copies) (string, []string) {
			a, b := c.archive(-20, id), c.archive(-6, other)
			c.base(a, -9, -8.9, 1)
			c.wal(a, -6.1, 1)
			c.base(b, -6, -5.9, 1)
			c.wal(b, -1, 1)
			return b, nil
		}},
		{"an archive that another server still writes", func(c *copies) (string, []string) {
			a, b := c.archive(-20, id), c.archive(-9, other)
			c.base(a, -9, -8.9, 1)
			c.wal(a, -0.1, 1)
			c.base(b, -9, -8.9, 1)
			c.wal(b, 0, 1)
			return b, nil
		}},
		{"an archive that ends with a mark", func(c *copies) (string, []string) {
			a, b := c.archive(-20, id), c.archive(-9, other)
			c.base(a, -9, -8.9, 1)
			c.wal(a, -8, 1)
			text, _ := json.Marshal(mark{day(-0.1), 2 * segment})
			c.put(a+markObject, text)
			c.base(b, -9, -8.9, 1)
			c.wal(b, 0, 1)
			return b, nil
		}},
		{"no archive that has ended before the oldest moment", func(c *copies) (string, []string) {
			a, b := c.archive(-20, id), c.archive(-9, other)
			base, wal := c.base(a, -19, -18.9, 1), c.wal(a, -10, 1)
			c.base(b, -9, -8.9, 1)
			c.wal(b, 0, 1)
			return b, []string{base + manifestObject, base + partName(0), wal}
		}},
		{"no archive before one whose first base backup is damaged", func(c *copies) (string, []string) {
			a, b := c.archive(-20, id), c.archive(-12, other)
			base, wal := c.base(a, -19, -18.9, 1), c.wal(a, -13, 1)
			damaged := c.base(b, -9, -8.9, 1)
			c.damage(damaged + manifestObject)
			c.base(b, -8, -7.9, 1)
			c.wal(b, 0, 1)
			return b, []string{base + manifestObject, base + partName(0), wal, damaged + manifestObject,
				damaged + partName(0)}
		}},
		{"the files of the oldest moment", func(c *copies) (string, []string) {
			names := []string{}
			for _, at := range []float64{-9, -8, -6} {
				names = append(names, regionPrefix("r1")+filesPrefix+day(at).Format(timeFormat))
				c.put(names[len(names)-1], nil)
			}
			return c.archive(-1, id), names[:1]
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCopies(t)
			current, want := test.write(c)
			slices.Sort(want)
			if deleted, err := c.deleteExpired(current); err != nil || !slices.Equal(deleted, want) {
				t.Errorf("deleted %q, %v; want %q", deleted, err, want)
			}
		})
	}
}

func TestDeleteExpiredGoesOnAfterAFailure(t *testing.T) {
	c := newCopies(t)
	a := c.archive(-20, "00000001")
	first := c.base(a, -10, -9.9, 1)
	locked := c.wal(a, -9.5, 1)
	c.base(a, -9, -8.9, 2)
	c.wal(a, -8.5, 2)
	c.damage(c.base(a, -8, -7.9, 3) + manifestObject)
	c.wal(a, -1, 3)
	c.store.SetFault(func(operation, name string) error {
		if operation == "delete" && name == locked {
			return errDown
		}
		return nil
	})
	deleted, err := c.deleteExpired(a)
	if want := []string{first + manifestObject, first + partName(0)}; !errors.Is(err, errDown) ||
		!slices.Equal(deleted, want) {
		t.Errorf("deleted %q, %v; want %q", deleted, err, want)
	}
}

func TestARestoreChoosesTheArchiveThatHasTheMoment(t *testing.T) {
	c := newCopies(t)
	region, drill := c.archive(-20, "00000001"), c.archive(-5, "00000002")
	first := c.base(region, -4, -3.9, 1)
	c.wal(region, -3, 1)
	second := c.base(region, -2, -1.9, 2)
	c.wal(region, -1, 2)
	c.base(drill, -5, -4.9, 1) // another server of the region's name, begun later, ended earlier
	c.wal(drill, -3.5, 1)
	expect := func(at time.Time, want string) {
		t.Helper()
		r, err := c.choose(at)
		if got := r.prefix + r.base + "/"; err != nil || got != want {
			t.Errorf("for %v: %s, %v; want %s", at, got, err, want)
		}
	}
	expect(time.Time{}, second)
	expect(day(-1.5), second)
	expect(day(-3.7), first)
	if windows, err := Windows(t.Context(), c.store, plainKMS{}, "r1"); err != nil || len(windows) != 2 ||
		!windows[0].From.Equal(day(-3.9)) || !windows[0].To.Equal(day(-1)) {
		t.Errorf("the windows are %v, %v", windows, err)
	}

	c.damage(second + manifestObject)
	expect(time.Time{}, first) // which has the same WAL after it
	c.damage(first + manifestObject)
	if _, err := c.choose(time.Time{}); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("instead of the archive that is damaged, another one is restored: %v", err)
	}
	if _, err := c.choose(day(-20)); err == nil {
		t.Error("a moment before all copies was restored")
	}
}

func TestWindowsShowAGap(t *testing.T) {
	c := newCopies(t)
	a := c.archive(-20, "00000001")
	c.base(a, -4, -3.9, 1)
	c.wal(a, -3, 1)
	missing := c.wal(a, -2.5, 2)
	c.base(a, -2, -1.9, 3)
	c.wal(a, -1, 3)
	c.store.Replace(missing, nil)
	windows, err := Windows(t.Context(), c.store, plainKMS{}, "r1")
	if err != nil || len(windows) != 2 || !windows[0].To.Equal(day(-3)) || !windows[1].From.Equal(day(-1.9)) {
		t.Errorf("the windows are %v, %v", windows, err)
	}
	if _, err := c.choose(day(-2.2)); !errors.Is(err, backup.ErrOutside) {
		t.Errorf("a moment after the missing piece: %v", err)
	}
	if _, err := c.choose(time.Time{}); err != nil {
		t.Errorf("the latest moment, with a base backup after the missing piece: %v", err)
	}
	c.wal(a, -0.5, 5)
	if _, err := c.choose(time.Time{}); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("the latest moment, with a piece missing before it: %v", err)
	}
}

func TestAStoreThatFailsEndsNoSession(t *testing.T) {
	quick.LeavesOut(t, "waits for real time")
	c := newCopies(t)
	s := &session{c: New(Options{Region: "r1", Store: c.store, Log: slog.New(slog.DiscardHandler)}), box: c.box}
	s.c.archive = "archive-20270120T120000.000Z-00000001"
	name := s.prefix() + markObject
	hasFailed := false
	c.store.SetFault(func(operation, object string) error {
		if operation == "put" && object == name && !hasFailed {
			hasFailed = true
			return errDown
		}
		return nil
	})
	if err := (&walStream{s: s}).put(t.Context(), name, []byte("text")); err != nil {
		t.Errorf("a store that failed once ended the session: %v", err)
	}
	if _, err := c.store.Get(t.Context(), name); err != nil {
		t.Error(err)
	}
}

func TestFilesThatWereThereAreNotMissingFromACopy(t *testing.T) {
	dir := t.TempDir()
	c := New(Options{Files: map[string]string{"a": dir + "/a", "never": dir + "/never"}})
	writeFile(t, dir+"/a", "text")
	if err := c.findFiles(); err != nil {
		t.Errorf("with a file that was never there: %v", err)
	}
	c.o.Files["a"] = dir + "/removed"
	if err := c.findFiles(); err == nil {
		t.Error("a file that was there is missing, and the copy goes on without it")
	}
}
