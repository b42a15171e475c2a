package agent

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

// An AppliedManifestWork is named after the work's name on its hub, as OCM's
// agent names it, or after the work's id when the hub gives no name (a Maestro
// gives the id as the name). Agents of ours before this rule used the id always.
//
// The source chooses the name of a work. So an AppliedManifestWork whose name is
// not the work's id has an annotation with the id, and a work does not use a name
// that another work uses: it falls back to its id.

// workIDAnnotation is the annotation of an AppliedManifestWork that has the id of
// its work.
const workIDAnnotation = "atoll.dev/work-id"

// name returns the work's name on its hub, "" when it has none.
func (s *spec) name() string {
	var md struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal([]byte(s.Metadata), &md) // the source's own; a work without a name is a work
	return md.Name
}

// creator returns the work that created the AMW: the work in its annotation, or else the
// work in its name.
func (a *amwState) creator() work.ID { return cmp.Or(a.work, work.ID(a.name)) }

// belongsTo reports whether the work created the AMW.
func (a *amwState) belongsTo(id work.ID) bool { return a.creator() == id }

func (c *core) setAMW(a *amwState) {
	c.dropAMW(a.name)
	c.amws[a.name] = a
	if a.work == "" {
		return
	}
	if c.amwsByWork[a.work] == nil {
		c.amwsByWork[a.work] = map[amwName]bool{}
	}
	c.amwsByWork[a.work][a.name] = true
}

func (c *core) dropAMW(name amwName) {
	a := c.amws[name]
	delete(c.amws, name)
	if a == nil || a.work == "" {
		return
	}
	delete(c.amwsByWork[a.work], name)
	if len(c.amwsByWork[a.work]) == 0 {
		delete(c.amwsByWork, a.work)
	}
}

// amwOf returns the work's AMW, nil when there is none.
func (c *core) amwOf(w *workState) *amwState { return c.amws[w.amw] }

// workOf returns the work of an AMW or of a former AMW; nil when the agent knows
// none.
func (c *core) workOf(a *amwState) *workState {
	if id, ok := c.nameHolders[a.name]; ok {
		return c.works[id]
	}
	return c.works[a.creator()]
}

// claimName sets the name of the work's AMW.
func (c *core) claimName(w *workState, name amwName) {
	c.releaseName(w)
	w.amw = name
	c.nameHolders[name] = w.id
}

// releaseName frees the name of the work's AMW: the work ends or gets another name.
func (c *core) releaseName(w *workState) {
	if c.nameHolders[w.amw] == w.id {
		delete(c.nameHolders, w.amw)
	}
	w.amw = ""
}

// chooseAMWName chooses the name of the work's AMW by its spec. A work that is being
// deleted keeps an existing AMW with any name.
func (c *core) chooseAMWName(w *workState) {
	names := []amwName{amwName(w.id), amwName("id-" + w.id)}
	if name := w.spec.name(); c.isValidAMWName(name) {
		names = slices.Insert(names, 0, amwName(name))
	}
	names = slices.DeleteFunc(names, func(n amwName) bool { return !c.mayClaimName(w, n) })
	if w.spec.Deleting {
		for _, n := range append(names, slices.Sorted(maps.Keys(c.amwsByWork[w.id]))...) {
			if c.amws[n] != nil && c.mayClaimName(w, n) {
				c.claimName(w, n)
				return
			}
		}
	}
	if len(names) > 0 && names[0] != w.amw {
		c.claimName(w, names[0])
	}
}

// isValidAMWName reports whether Kubernetes accepts the name for an AMW.
func (c *core) isValidAMWName(name string) bool {
	return name != "" && len(c.cfg.hubHash)+1+len(name) <= utilvalidation.DNS1123SubdomainMaxLength &&
		len(validation.NameIsDNSSubdomain(name, false)) == 0
}

// mayClaimName reports whether no other work uses the name and no other work
// created the AMW of that name.
func (c *core) mayClaimName(w *workState, name amwName) bool {
	if id, ok := c.nameHolders[name]; ok && id != w.id {
		return false
	}
	if other := c.works[work.ID(name)]; other != nil && other != w {
		return false
	}
	a := c.amws[name]
	return a == nil || a.work == "" || a.work == w.id
}

// formerAMW returns an AMW of the work with another name than the present one, nil
// when there is none.
func (c *core) formerAMW(w *workState) *amwState {
	names := slices.Sorted(maps.Keys(c.amwsByWork[w.id]))
	for _, name := range append(names, amwName(w.id)) {
		a := c.amws[name]
		if _, isHeld := c.nameHolders[name]; a != nil && name != w.amw && !isHeld && a.belongsTo(w.id) {
			return a
		}
	}
	return nil
}

// takeOverFormer orders that the present AMW becomes the owner of all objects of a
// former AMW. It reports whether a former AMW still exists; the work prunes nothing
// before its end. By then the manifests are applied with the present AMW as owner.
func (c *core) takeOverFormer(w *workState, amw *amwState) bool {
	f := c.formerAMW(w)
	if f == nil {
		return false
	}
	if w.amwCallInFlight || w.recordInFlight || w.callsInFlight > 0 || w.amwDue.After(c.now) {
		return true
	}
	w.amwCallInFlight = true
	orphaned := map[identity]bool{}
	for _, m := range w.manifests {
		if m.mapped && !m.owned {
			orphaned[m.key.identity()] = true
		}
	}
	c.emit(effTakeOverAMW{
		id: w.id, name: w.amw, uid: amw.uid, former: f.name, formerUID: f.uid, finalizers: f.otherFinalizers(),
		objects: unionOf(c.possibleObjects(w, f), nil), orphaned: orphaned, applied: unionOf(amw.applied, f.applied),
	})
	return true
}

// otherFinalizers returns the finalizers that are not the agent's.
func (a *amwState) otherFinalizers() []string {
	return slices.DeleteFunc(slices.Clone(a.finalizers), func(f string) bool { return f == amwFinalizer })
}

// unionOf lists the objects of both lists, each once.
func unionOf(a, b []resourceRef) []resourceRef {
	all := slices.Concat(a, b)
	slices.SortStableFunc(all, compareRefs)
	return slices.CompactFunc(all, func(x, y resourceRef) bool { return compareRefs(x, y) == 0 })
}
