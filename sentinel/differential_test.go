package sentinel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/rules"
	"atoll.dev/store"
)

// plainRules decides as Rules, without any saving: it decodes all of a resource and evaluates all
// parameters for each time.
type plainRules struct {
	selector []Label
	params   *rules.Params
	result   *rules.Program
	timed    bool
	distance time.Duration
}

func newPlainRules(c Config) (*plainRules, error) {
	env, err := decisionEnv()
	if err != nil {
		return nil, err
	}
	var defs []rules.Definition
	text := c.MessageDecision.Result
	for _, p := range c.MessageDecision.Params {
		defs = append(defs, rules.Definition{Name: p.Name, Expression: p.Expr})
		text += "\n" + p.Expr
	}
	p := &plainRules{selector: c.ResourceSelector, timed: strings.Contains(text, "now")}
	if p.params, err = env.Params(defs); err != nil {
		return nil, err
	}
	p.result, err = p.params.Env().Compile(c.MessageDecision.Result, rules.Bool)
	return p, err
}

func (p *plainRules) decide(ctx context.Context, f Facts, t Publication, now time.Time) (bool, error) {
	latest := f.lastReport
	if t.At.After(latest) {
		latest = t.At
	}
	vars, err := p.params.Eval(ctx, map[string]any{
		"resource": f.resource, "conditions": f.conditions, "now": now, "last_activity": latest,
		"event": map[string]any{"generation": t.Generation, "time": t.At, "attempts": int64(t.Attempts)},
	})
	if err != nil {
		return false, err
	}
	out, err := p.result.Eval(ctx, vars)
	return err == nil && out.Value == true, err
}

func (p *plainRules) flip(ctx context.Context, f Facts, t Publication, now time.Time) (time.Time, error) {
	if !p.timed {
		return time.Time{}, nil
	}
	var failed error
	at := func(when time.Time) bool {
		yes, err := p.decide(ctx, f, t, when)
		failed = errors.Join(failed, err)
		return yes
	}
	latest := f.lastReport
	if t.At.After(latest) {
		latest = t.At
	}
	if d := p.distance; d > 0 {
		guess := latest.Add(d)
		if before := guess.Add(-d / 32); before.After(now) && !at(before) && at(guess) && failed == nil {
			return guess, nil
		}
	}
	low, high := time.Duration(0), firstStep
	for !at(now.Add(high)) {
		if failed != nil || high >= maxLookAhead {
			return now.Add(maxLookAhead), failed
		}
		low, high = high, min(2*high, maxLookAhead)
	}
	for high-low > max(high/precisionShare, minPrecision) && failed == nil {
		if middle := low + (high-low)/2; at(now.Add(middle)) {
			high = middle
		} else {
			low = middle
		}
	}
	p.distance = now.Add(high).Sub(latest)
	return now.Add(high), failed
}

func (p *plainRules) verdict(ctx context.Context, f Facts, s State, now time.Time) (v Verdict, err error) {
	last := Publication{s.Published, s.PublishedAt.time(), int(s.Attempts)}
	if v.Wanted, err = p.decide(ctx, f, last, now); err != nil {
		return v, err
	}
	var flip time.Time
	if !v.Wanted && !s.Requested {
		flip, err = p.flip(ctx, f, last, now)
		v.TrueAt = instantOf(flip)
		return v, err
	}
	last = Publication{s.Generation, now, last.Attempts + 1}
	if v.After.Wanted, err = p.decide(ctx, f, last, now); err == nil && !v.After.Wanted {
		flip, err = p.flip(ctx, f, last, now)
		v.After.TrueAt = instantOf(flip)
	}
	if err != nil {
		v.After, err = NextDecision{Wanted: true}, nil
	}
	return v, err
}

// differentialConfigs are files whose decisions the test compares: each way to read a resource, a condition and the
// clock, expressions that fail, and those that do not fail although a parameter is never read.
func differentialConfigs(t testing.TB) []Config {
	texts := []string{"{resource_type: clusters}", "{resource_type: clusters, message_data: {}}", reference}
	for _, decision := range []string{
		`{result: 'true'}`,
		`{result: 'resource.generation > 2 && has(resource.deleted_time)'}`,
		`{result: '!has(resource.status.conditions) || resource.status.conditions.exists(c, c.observed_generation == 1)'}`,
		`{result: 'resource.?labels.?shard.orValue("") == "1" || resource["kind"] == "Cluster" && now > timestamp("2026-11-22T12:00:00Z")'}`,
		`{result: '"Available" in conditions'}`,
		`{params: [{name: unread, expr: 'resource.absent'}], result: 'now - last_activity > duration("10m")'}`,
		`{params: [{name: kind, expr: '"Avail" + "able"'}, {name: found, expr: 'condition(kind).status'}], result: 'found != "True"'}`,
		`{params: [{name: since, expr: 'timestamp(condition("Available").last_updated_time)'}], result: 'now - since > duration("2h") && event.attempts < 3'}`,
		`{params: [{name: age, expr: 'now - timestamp(resource.created_time)'}, {name: old, expr: 'age > duration("1h")'}, {name: young, expr: 'event.generation == 0'}], result: 'old || young'}`,
		`{result: 'resource.size() > 8 || condition("Reconciled").observed_generation < resource.generation'}`,
		`{result: 'now > event.time + duration("5m") && now < event.time + duration("7m")'}`,
	} {
		texts = append(texts, "{resource_type: clusters, message_decision: "+decision+"}")
	}
	var all []Config
	for _, text := range texts {
		c, err := ParseConfig("differential.yaml", []byte(text))
		must(t, 0, err)
		c.fill()
		all = append(all, c)
	}
	return all
}

// randomTime is often a time, and sometimes another value.
func randomTime(t *rapid.T, name string) any {
	if rapid.IntRange(0, 9).Draw(t, name+" form") == 0 {
		return rapid.SampledFrom([]any{"", "yesterday", nil, 5, map[string]any{}}).Draw(t, name)
	}
	return idleSince.Add(time.Duration(rapid.IntRange(-7200_000, 7200_000).Draw(t, name)) * time.Millisecond)
}

func randomCondition(t *rapid.T) any {
	if rapid.IntRange(0, 19).Draw(t, "condition form") == 0 {
		return rapid.SampledFrom([]any{nil, "text", []any{}, map[string]any{}, map[string]any{"type": 7}}).Draw(t,
			"odd condition")
	}
	c := map[string]any{
		"type":   rapid.SampledFrom([]string{"Reconciled", "Available", "LastKnownReconciled", "Änderung"}).Draw(t, "type"),
		"status": rapid.SampledFrom([]string{"True", "False", "Unknown"}).Draw(t, "status"),
		"reason": rapid.StringN(0, 8, 20).Draw(t, "reason"), "last_updated_time": randomTime(t, "updated"),
	}
	if rapid.Bool().Draw(t, "observed") {
		c["observed_generation"] = rapid.SampledFrom([]any{0, 1, 2, 3.5, "1"}).Draw(t, "observed_generation")
	}
	return c
}

func randomResource(t *rapid.T) []byte {
	r := map[string]any{"spec": map[string]any{"text": rapid.String().Draw(t, "spec"), "list": []any{1, "}", nil}}}
	set := func(name string, v any) {
		if rapid.IntRange(0, 9).Draw(t, "has "+name) > 0 {
			r[name] = v
		}
	}
	set("generation", rapid.SampledFrom([]any{1, 2, 3, 2.5, "2"}).Draw(t, "generation"))
	set("kind", rapid.SampledFrom([]any{"Cluster", "NodePool", 1}).Draw(t, "kind"))
	set("created_time", randomTime(t, "created"))
	set("updated_time", randomTime(t, "updated"))
	set("labels", rapid.SampledFrom([]any{nil, map[string]any{"shard": "1"}, map[string]any{"shard": "2"}, []any{}}).Draw(
		t, "labels"))
	if rapid.Bool().Draw(t, "deleted") {
		r["deleted_time"] = randomTime(t, "deleted")
	}
	conditions := rapid.SliceOfN(rapid.Custom(randomCondition), 0, 5).Draw(t, "conditions")
	set("status", rapid.SampledFrom([]any{map[string]any{"conditions": conditions, "phase": "x"},
		map[string]any{"conditions": conditions}, map[string]any{"conditions": "none"}, nil, "text"}).Draw(t, "status"))
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if rapid.IntRange(0, 9).Draw(t, "twice") == 0 { // of two members with one name the last counts
		text = append(text[:len(text)-1], `,"status":{"conditions":[{"type":"Reconciled","type":"Available"}]}}`...)
	}
	if rapid.IntRange(0, 19).Draw(t, "cut") == 0 {
		text = text[:rapid.IntRange(0, len(text)-1).Draw(t, "length")]
	}
	return text
}

// Rules decode only what expressions read, and evaluate for a second time only what depends on it. The decisions,
// the selection and the marks are those of plainRules and of plainMark.
func TestDecisionsAreThoseOfTheWholeResource(t *testing.T) {
	configs := differentialConfigs(t)
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(configs).Draw(t, "configuration")
		compiled, err := c.Compile()
		if err != nil {
			t.Fatal(err)
		}
		plain, err := newPlainRules(c)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 4).Draw(t, "resources") {
			text := randomResource(t)
			all, wantErr := allFacts(text)
			f, err := compiled.Facts(text)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%s: %v, want %v", text, err, wantErr)
			}
			if err != nil {
				continue
			}
			whole := &Rules{selector: plain.selector}
			if got, want := compiled.matches(f), whole.matches(all); got != want {
				t.Fatalf("%s: the selector matches: %v, want %v", text, got, want)
			}
			data, err := compiled.Data(t.Context(), f, reasonMatched)
			wantData, wantErr := compiled.Data(t.Context(), all, reasonMatched)
			if string(data) != string(wantData) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("%s: the event's data is %s, %v; want %s, %v", text, data, err, wantData, wantErr)
			}
			s := State{Generation: rapid.Int64Range(1, 3).Draw(t, "now at"), Published: rapid.Int64Range(0, 3).Draw(t, "sent"),
				Attempts: rapid.Uint8Range(0, 4).Draw(t, "attempts"), Requested: rapid.Bool().Draw(t, "forced")}
			if rapid.Bool().Draw(t, "known") {
				s.PublishedAt = instantOf(idleSince).add(time.Duration(rapid.IntRange(-900, 900).Draw(t, "sent at")) * time.Second)
			}
			now := idleSince.Add(time.Duration(rapid.IntRange(0, 7200).Draw(t, "now")) * time.Second)
			want, wantErr := plain.verdict(t.Context(), all, s, now)
			got, err := compiled.verdict(t.Context(), f, s, now)
			if got != want || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("%s\nstate %+v\ngot  %+v, %v\nwant %+v, %v", text, s, got, err, want, wantErr)
			}
			stored, err := json.Marshal(all.resource) // a stored status has no two members with one name
			if err != nil {
				t.Fatal(err)
			}
			if got, want := progressHash(&store.Document{Status: stored}), plainMark(stored); got != want {
				t.Fatalf("%s: mark %x, want %x", stored, got, want)
			}
		}
	})
}

// plainMark is progressHash over decoded JSON.
func plainMark(text []byte) uint64 {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return hashText(text)
	}
	return plainMarkValue(v)
}

func plainMarkValue(v any) uint64 {
	switch v := v.(type) {
	case map[string]any:
		sum := uint64(1)
		for name, x := range v {
			if !strings.HasSuffix(name, "_time") {
				sum += spreadBits(hashText(name) ^ bits.RotateLeft64(plainMarkValue(x), 1))
			}
		}
		return spreadBits(sum)
	case []any:
		sum := uint64(2)
		for _, x := range v {
			sum = spreadBits(sum ^ bits.RotateLeft64(plainMarkValue(x), 1))
		}
		return sum
	case string:
		return hashText(v)
	case nil:
		return hashText("null") + 3
	}
	return hashText(fmt.Sprint(v)) + 3
}
