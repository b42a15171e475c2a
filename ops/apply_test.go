package ops

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	testLease  = 10 * time.Second
	testBudget = 10 * time.Minute
)

// TestAnOperationFollowsTheScenarios runs the scenarios of testdata.
func TestAnOperationFollowsTheScenarios(t *testing.T) {
	text, err := os.ReadFile("testdata/lifecycle.txt")
	if err != nil {
		t.Fatal(err)
	}
	var s State
	scenarios := 0
	for i, line := range strings.Split(string(text), "\n") {
		switch title, isTitle := strings.CutPrefix(line, "scenario "); {
		case isTitle:
			scenarios++
			s = New(Order{ID: title, Budget: testBudget}, start)
		case line == "notify":
			s.NotificationURI = "https://example.com/"
		case line != "" && !strings.HasPrefix(line, "#"):
			input, want, _ := strings.Cut(line, "=>")
			event, now := parseEvent(t, input)
			after, effects, err := s.Apply(event, now)
			got := describe(after, effects)
			if err != nil {
				got = "error " + err.Error()
			} else {
				s = after
			}
			if strings.TrimSpace(want) != got {
				t.Errorf("line %d, %s: %s\n got %s\nwant %s", i+1, s.ID, input, got, strings.TrimSpace(want))
			}
		}
	}
	if scenarios < 10 {
		t.Errorf("%d scenarios were read", scenarios)
	}
}

func parseEvent(t *testing.T, text string) (e Event, now time.Time) {
	words := strings.Fields(text)
	seconds, err := strconv.Atoi(words[0])
	if err != nil {
		t.Fatal(err)
	}
	e = Event{Kind: EventKind(words[1]), For: testLease}
	for _, word := range words[2:] {
		name, value, _ := strings.Cut(word, "=")
		number, _ := strconv.Atoi(value)
		switch name {
		case "holder":
			e.Holder = value
		case "fence":
			e.Fence = int64(number)
		case "phase":
			e.Phase = value
		case "percent":
			e.Percent = number
		case "error":
			e.Error = &Error{Code: value, Message: value}
		case "step":
			e.Step = &Step{Name: value}
		default:
			t.Fatalf("unknown field %s", word)
		}
	}
	return e, start.Add(time.Duration(seconds) * time.Second)
}

func describe(s State, effects []Effect) string {
	seconds := func(at time.Time) int { return int(at.Sub(start) / time.Second) }
	text := fmt.Sprintf("%s fence=%d", s.Status, s.Fence)
	if s.Lease != nil {
		text += " lease=" + s.Lease.Holder
	}
	text += fmt.Sprintf(" %d%%", s.Percent)
	if s.Phase != "" {
		text += " " + s.Phase
	}
	if s.Attempts > 0 {
		text += fmt.Sprintf(" attempts=%d next=%d", s.Attempts, seconds(s.NotBefore))
	}
	if s.Error != nil {
		text += " error=" + s.Error.Code
	}
	for i, step := range s.Journal {
		text += fmt.Sprintf("%s%s@%d", map[bool]string{true: " steps=", false: ","}[i == 0], step.Name, seconds(step.At))
	}
	if s.Notification != nil && s.Notification.Pending {
		text += fmt.Sprintf(" notice@%d", seconds(s.Notification.NotBefore))
	}
	if len(effects) > 0 {
		text += fmt.Sprint(" ", effects)
	}
	return text
}

// TestEveryOperationKeepsItsPromises applies random events, with a clock that goes forward, and checks
// what must hold after each.
func TestEveryOperationKeepsItsPromises(t *testing.T) {
	kinds := []EventKind{Acquire, Renew, Release, Progress, Retry, Succeed, Fail, Cancel, Notified, NotifyFailed}
	rapid.Check(t, func(t *rapid.T) {
		order := Order{ID: "x", Budget: testBudget}
		if rapid.Bool().Draw(t, "notify") {
			order.NotificationURI = "https://example.com/"
		}
		s, now, freed := New(order, start), start, 0
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
			e := Event{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Holder: rapid.SampledFrom([]string{"a", "b"}).
				Draw(t, "holder"), For: testLease, Fence: s.Fence - int64(rapid.IntRange(0, 1).Draw(t, "old")),
				Percent: rapid.IntRange(-5, 150).Draw(t, "percent"), Error: &Error{Code: "E"}}
			before := s
			after, effects, err := s.Apply(e, now)
			if err != nil {
				if fmt.Sprint(after) != fmt.Sprint(before) {
					t.Fatalf("%v changed the state although it was refused", e)
				}
				if !errors.Is(err, ErrEnded) && !errors.Is(err, ErrFenced) && !errors.Is(err, ErrLeased) &&
					!errors.Is(err, ErrTooEarly) {
					t.Fatal(err)
				}
				continue
			}
			s = after
			for _, effect := range effects {
				if effect == FreeResource {
					freed++
				}
			}
			ended := s.Status.IsTerminal()
			switch {
			case before.Status.IsTerminal() && s.Status != before.Status:
				t.Fatalf("the terminal %s became %s", before.Status, s.Status)
			case ended != (freed == 1) || freed > 1:
				t.Fatalf("%s, and the resource was freed %d times", s.Status, freed)
			case s.Percent < before.Percent || s.Percent > 100 || s.Percent == 100 != (s.Status == Succeeded):
				t.Fatalf("%s: from %d%% to %d%%", s.Status, before.Percent, s.Percent)
			case s.Fence < before.Fence || s.Fence > before.Fence+1:
				t.Fatalf("the fence went from %d to %d", before.Fence, s.Fence)
			case before.isLeased(now) && e.Kind == Acquire:
				t.Fatal("a held lease was taken")
			case e.Kind != Acquire && e.Kind != Cancel && (e.Fence != before.Fence || !before.isLeased(now)):
				t.Fatalf("%s without the lease was accepted", e.Kind)
			case !now.Before(s.Deadline()) && !ended && e.Kind != Acquire && e.Kind != Release:
				t.Fatalf("%s left the operation active after its budget", e.Kind)
			case ended != !s.EndedAt.IsZero() || (s.Status == Failed) && s.Error == nil:
				t.Fatalf("%s with end %s and error %v", s.Status, s.EndedAt, s.Error)
			case s.ViewAsARM("id", "Working").EndTime != nil != ended:
				t.Fatal("the view has an end of an active operation, or none of an ended one")
			}
		}
	})
}
