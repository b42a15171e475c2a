package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/work"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Scenarios show the core at work, for readers. Each file of testdata/scenarios
// is one story in commands; the output lists the effects that the core orders
// and what the server and the cluster have afterwards. The commands:
//
//	apply WORK [name=N] [orphan]    the server orders a work; the input has one object a line: NAME=VALUE [STRATEGY];
//	                                its feedback rules differ from those of the generation before
//	delete WORK                     the server orders its deletion
//	connect, disconnect             the connection between server and agent
//	run [calls=N]                   carry out what is in flight, until nothing happens without the clock; at most N calls
//	advance DURATION                the clock moves, and what is due then runs
//	restart                         the agent is killed: calls, messages and unflushed records are lost
//	api up, api down                the API server of the management cluster
//	edit OBJECT, remove OBJECT      somebody else changes or deletes an object
//	hold OBJECT                     a finalizer of another controller keeps the object
//	watch denied                    the agent loses the right to watch the objects
//	kind unknown, kind known        whether the API server serves the kind of the objects
//	kinds-change                    the watch shows a change of a CustomResourceDefinition
//	remove-amw NAME                 somebody else deletes an AppliedManifestWork
//	cluster                         print the objects and AppliedManifestWorks
//	server                          print the works that the server knows
//
// Run go test ./agent -run TestScenarios -rewrite to accept new output.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := newScenario(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.lines = nil
			s.command(d)
			if len(s.lines) == 0 {
				return "ok\n"
			}
			return strings.Join(s.lines, "\n") + "\n"
		})
	})
}

// scenario is a model whose history is in a file.
type scenario struct {
	*model
	t     *testing.T
	lines []string
	step  []string // effects of the present step
}

func newScenario(t *testing.T) *scenario {
	s := &scenario{model: emptyModel(), t: t}
	s.fatalf, s.digests = t.Fatalf, true
	s.trace = func(e effect) {
		if text := effectText(e); text != "" {
			s.step = append(s.step, "  "+text)
		}
	}
	s.restart()
	s.finishStep()
	s.run(-1)
	return s
}

func (s *scenario) printf(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// finishStep prints the effects of a step in a fixed order: maps of the core have none.
func (s *scenario) finishStep() {
	slices.Sort(s.step)
	s.lines = append(s.lines, s.step...)
	s.step = nil
	slices.SortStableFunc(s.calls, func(a, b effect) int { return strings.Compare(effectText(a), effectText(b)) })
}

func (s *scenario) command(d *datadriven.TestData) {
	word := func(i int) string {
		if i >= len(d.CmdArgs) {
			d.Fatalf(s.t, "%s: argument %d is missing", d.Cmd, i+1)
		}
		return d.CmdArgs[i].Key
	}
	switch d.Cmd {
	case "apply":
		s.apply(d, work.ID(word(0)))
	case "delete":
		s.orders[work.ID(word(0))].deleting = true
		s.publish(work.ID(word(0)))
	case "connect":
		s.connect()
	case "disconnect":
		s.disconnect()
	case "run":
		calls := -1
		if d.HasArg("calls") {
			d.ScanArgs(s.t, "calls", &calls)
		}
		s.run(calls)
	case "advance":
		by, err := time.ParseDuration(word(0))
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		s.advance(by)
	case "restart":
		s.restart()
	case "api":
		s.apiUp = word(0) == "up"
	case "edit":
		key := objectKey{configMaps, "ns", word(0)}
		s.objects[key].value, s.objects[key].fingerprint = "drift", "lost"
		s.showChange(key)
	case "remove":
		key := objectKey{configMaps, "ns", word(0)}
		delete(s.objects, key)
		s.showChange(key)
	case "hold":
		s.objects[objectKey{configMaps, "ns", word(0)}].held = true
	case "watch":
		s.watchDenied = word(0) == "denied"
	case "kind":
		s.kindUnknown = word(0) == "unknown"
	case "kinds-change":
		s.model.step(evKindsChanged{})
	case "remove-amw":
		a := s.amws[amwName(word(0))]
		a.deleting = true
		s.showAMWChange(a.name, a)
	case "cluster":
		s.printCluster()
	case "server":
		s.printServer()
	default:
		d.Fatalf(s.t, "no command %s", d.Cmd)
	}
	s.finishStep()
}

func (s *scenario) apply(d *datadriven.TestData, id work.ID) {
	o := s.orders[id]
	if o == nil {
		o = &modelOrder{generation: s.lastGenerations[id]}
		s.orders[id] = o
	}
	o.generation++
	o.applied, o.orphan, o.name = false, d.HasArg("orphan"), ""
	if d.HasArg("name") {
		d.ScanArgs(s.t, "name", &o.name)
	}
	o.objects, o.strategies = map[string]string{}, map[string]workv1.UpdateStrategyType{}
	for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
		object, strategy, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, value, ok := strings.Cut(object, "=")
		if !ok {
			d.Fatalf(s.t, "%q is no NAME=VALUE", line)
		}
		o.objects[name] = value
		if strategy != "" {
			o.strategies[name] = workv1.UpdateStrategyType(strategy)
		}
	}
	s.publish(id)
}

// run executes calls in flight until only timers remain, or until that many calls are made; -1: any
// number.
func (s *scenario) run(calls int) {
	for {
		switch {
		case len(s.events) > 0:
			ev := s.events[0]
			s.events = s.events[1:]
			s.model.step(ev)
		case len(s.unflushed) > 0:
			s.flushDisk(len(s.unflushed))
		case len(s.specsInFlight) > 0:
			ev := s.specsInFlight[0]
			s.specsInFlight = s.specsInFlight[1:]
			s.model.step(ev)
		case len(s.calls) > 0 && calls != 0:
			e := s.calls[0]
			s.calls = s.calls[1:]
			calls--
			if s.apiUp {
				s.events = append(s.events, s.execute(e))
			} else if _, isProbe := e.(effProbe); isProbe {
				s.calls = append(s.calls, e)
				return // the probe waits for the API server
			} else {
				s.events = append(s.events, failedAnswer(e))
			}
		case len(s.sends) > 0:
			ev := s.sends[0]
			s.sends = s.sends[1:]
			if s.online {
				s.status(ev)
			}
			s.events = append(s.events, evSent{id: ev.id, seq: ev.seq, hash: ev.hash, accepted: s.online})
		case s.collectable():
			s.collectGarbage()
		default:
			return
		}
		s.finishStep()
	}
}

// advance moves the clock from timer to timer.
func (s *scenario) advance(by time.Duration) {
	end := s.now.Add(by)
	for at := s.core.nextWake(); !at.IsZero() && !at.After(end); at = s.core.nextWake() {
		s.now = at
		s.model.step(evTick{})
		s.finishStep()
		s.run(-1)
	}
	s.now = end
}

func (s *scenario) printCluster() {
	names := map[types.UID]string{}
	for _, name := range slices.Sorted(maps.Keys(s.amws)) {
		a := s.amws[name]
		names[a.uid] = string(name)
		var refs []string
		for _, r := range a.applied {
			refs = append(refs, r.Name)
		}
		s.printf("AppliedManifestWork %s lists %v", name, refs)
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.objects), compareKeys) {
		o := s.objects[key]
		owners := []string{}
		for _, u := range o.owners {
			owners = append(owners, names[u])
		}
		slices.Sort(owners)
		s.printf("object %s=%s owned by %v", key.Name, o.value, owners)
	}
	if len(s.lines) == 0 {
		s.printf("nothing")
	}
}

func (s *scenario) printServer() {
	for _, id := range slices.Sorted(maps.Keys(s.orders)) {
		o := s.orders[id]
		state := "not applied"
		switch {
		case o.deleting:
			state = "deletion not acknowledged"
		case o.applied:
			state = "applied"
		}
		s.printf("work %s generation %d: %s", id, o.generation, state)
	}
	if len(s.lines) == 0 {
		s.printf("no works")
	}
}

// effectText describes an effect in a line, "" for effects that readers need not
// see.
func effectText(e effect) string {
	switch e := e.(type) {
	case effPersist:
		switch {
		case e.rec.Spec != nil && e.rec.Spec.Deleting:
			return fmt.Sprintf("write to disk: %s is to be deleted", e.rec.ID)
		case e.rec.Spec != nil:
			return fmt.Sprintf("write to disk: %s generation %d", e.rec.ID, e.rec.Spec.Generation)
		case e.rec.Drop:
			return fmt.Sprintf("write to disk: %s is deleted", e.rec.ID)
		case e.rec.Progress != nil && len(e.rec.Progress.Possible) > 0 && e.then != nil:
			return fmt.Sprintf("write to disk: %s may create %v", e.rec.ID, refNames(e.rec.Progress.Possible))
		}
	case effDiscover:
		return "discover kind " + e.gvk.Kind
	case effCreateAMW:
		return fmt.Sprintf("create AppliedManifestWork %s of %s", e.name, e.id)
	case effTakeOverAMW:
		return fmt.Sprintf("take over from AppliedManifestWork %s to %s of %s", e.former, e.name, e.id)
	case effDeleteAMW:
		return fmt.Sprintf("delete AppliedManifestWork %s of %s", e.name, e.id)
	case effFinalizeAMW:
		return fmt.Sprintf("remove the finalizer of AppliedManifestWork %s of %s", e.name, e.id)
	case effRecordAMW:
		return fmt.Sprintf("record in AppliedManifestWork %s of %s: %v", e.name, e.id, refNames(e.applied))
	case effApply:
		verb := "apply"
		if e.onlyRead {
			verb = "read"
		}
		return fmt.Sprintf("%s %s of %s", verb, e.key.Name, e.id)
	case effRemove:
		verb := "remove"
		if e.release {
			verb = "release"
		}
		return fmt.Sprintf("%s %s of %s", verb, e.key.Name, e.id)
	case effProbe:
		return "probe the API server"
	case effResync:
		return "send the list of works to the server"
	case effPublish:
		return "send to the server: " + e.kind[strings.LastIndex(e.kind, ".")+1:]
	case effSend:
		var conditions []string
		for _, c := range e.event.status.Conditions {
			conditions = append(conditions, c.Type+"="+string(c.Status))
		}
		return fmt.Sprintf("send status of %s generation %d: %s", e.event.id, e.event.version, strings.Join(conditions, " "))
	}
	return ""
}

func refNames(refs []resourceRef) []string {
	names := []string{}
	for _, r := range refs {
		names = append(names, r.Name)
	}
	return names
}
