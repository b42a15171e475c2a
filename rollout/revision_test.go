package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheRevisionOfARolloutIsOneCommit drives a rollout of a branch that moves: all regions get the commit of the
// beginning, also by another driver, and a revert takes it away again.
func TestTheRevisionOfARolloutIsOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		text := "environment: prod\nchange: {revision: %s}\ngates: [{name: api, url: 'https://$region/ready'}]\n"
		m.write(rolloutFile, fmt.Sprintf(text, "realease"))
		_, err := m.driver(healthy{}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), rolloutFile+":2: ") || !strings.Contains(err.Error(), "realease") {
			t.Errorf("got %v", err)
		}
		inSet := strings.Replace(text, "revision: %s", "set: {git.revision: %s}", 1)
		m.write(rolloutFile, fmt.Sprintf(inSet, "realease"))
		_, err = m.driver(healthy{}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), rolloutFile+":2: ") || !strings.Contains(err.Error(), "realease") {
			t.Errorf("a git.revision in change.set: got %v", err)
		}
		m.write(rolloutFile, fmt.Sprintf(text, "release"))
		ctx, cancel := context.WithCancel(t.Context())
		first := m.driver(healthy{})
		first.Show = func(e Event) {
			if strings.Contains(e.What, "change r1") {
				cancel()
			}
		}
		if _, err := first.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		record, err := m.driver(healthy{}).Run(t.Context())
		if err != nil || record.State.Phase != Done || record.Revision != fmt.Sprintf("%040d", 1) {
			t.Fatal(record, err)
		}
		files := m.at(fmt.Sprint(len(m.commits) - 1)).files
		for _, region := range []string{"r1", "r2", "r3"} {
			if config := string(files["config/prod/regions/"+region+".yaml"].Data); !strings.Contains(config, record.Revision) {
				t.Errorf("%s has\n%s", region, config)
			}
		}
		if first := m.subjects()[3]; !strings.Contains(first, "the revision release is "+record.Revision) {
			t.Errorf("the first commit is %s", first)
		}
		_, err = m.driver(healthy{}).Command(t.Context(), func(_ Plan, s State) (State, []Effect, error) {
			return s.Command(Revert, "ann", time.Now())
		})
		files = m.at(fmt.Sprint(len(m.commits) - 1)).files
		if config := string(files["config/prod/regions/r1.yaml"].Data); err != nil || strings.Contains(config, "revision") {
			t.Errorf("after the revert r1 has\n%s%v", config, err)
		}
	})
}

// TestARevisionWithoutTheValuesOfARegionIsRefused: the commit has a chart, and no rendered file of a region.
func TestARevisionWithoutTheValuesOfARegionIsRefused(t *testing.T) {
	m := newMemory("")
	m.write("deploy/charts/shared/a/values.yaml", "")
	m.write(rolloutFile, "environment: prod\nchange: {revision: release}\n"+
		"gates: [{name: api, url: 'https://$region/ready'}]\n")
	before := len(m.commits)
	_, err := m.driver(healthy{}).Run(t.Context())
	want := fmt.Sprintf("config/prod/regions/r1.yaml:4: the git.revision %040d has no "+
		"deploy/prod/r1/regional-cluster/values.yaml", 1)
	if err == nil || !strings.Contains(err.Error(), want) || len(m.commits) != before {
		t.Errorf("got %v with %d commits more, want %q", err, len(m.commits)-before, want)
	}
}

// TestARolloutShowsAPinThatItCannotCheckAndTriesAReadErrorAgain: git is killed twice, the first time when the rollout
// begins. Then the pinned commit is that of the clone, and the output and the record say so once.
func TestARolloutShowsAPinThatItCannotCheckAndTriesAReadErrorAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory("")
		m.write(rolloutFile, "environment: prod\nchange: {revision: release}\n"+
			"gates: [{name: api, url: 'https://$region/ready'}]\n")
		for range 3 { // so that there are as many commits as tries
			m.write("README.md", "")
		}
		m.note, m.unreadable = "checked at the clone's commit 1", 2
		d, shown := m.driver(healthy{}), ""
		d.Show = func(e Event) { shown += e.What + "\n" }
		record, err := d.Run(t.Context())
		if err != nil || record.State.Phase != Done {
			t.Fatal(record, err)
		}
		if !strings.Contains(shown, "git was killed") || strings.Count(shown, m.note) != 1 {
			t.Errorf("shown was\n%s", shown)
		}
		if len(record.Unchecked) != 1 || !strings.HasSuffix(record.Unchecked[0], " is "+m.note) {
			t.Errorf("the record has %q", record.Unchecked)
		}
	})
}
