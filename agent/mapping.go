package agent

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

// mapManifest completes a manifest with the mapping of its kind. It reports
// whether discovery has answered for the kind; otherwise it orders discovery.
func (c *core) mapManifest(w *workState, m *manifestState) bool {
	if m.mapped || m.rejected != "" {
		return true
	}
	mp := c.mappings[m.gvk]
	if mp == nil {
		mp = &mapping{waitingWorks: map[work.ID]bool{}}
		c.mappings[m.gvk] = mp
	}
	if !mp.known {
		waits := m.attempted && m.retryAt.After(c.now)
		if waits && !mp.inFlight {
			return true
		}
		if !m.attempted && mp.err != "" && !mp.inFlight && c.now.Sub(mp.askedAt) < backoffFirst {
			c.handleUnknownKind(w, m, mp.err)
			return true
		}
		mp.waitingWorks[w.id] = true
		c.discover(m.gvk, mp)
		return false
	}
	if !mp.namespaced {
		m.meta.Namespace = ""
	} else if m.meta.Namespace == "" {
		m.meta.Namespace = "default"
	}
	m.mapped = true
	m.meta.Resource = mp.gvr.Resource
	m.key = objectKey{mp.gvr, m.meta.Namespace, m.meta.Name}
	m.owned = ownsObject(m.key.identity(), w.spec.Bundle.DeleteOption)
	config := matchConfig(m.key.identity(), w.spec.Bundle.ManifestConfigs)
	if work.IsSecret(m.key.Group, m.key.Resource) {
		m.rules = c.rules.refused(config.FeedbackRules, config.ConditionRules)
	} else {
		m.rules = c.rules.compiled(config.FeedbackRules, config.ConditionRules)
	}
	var refused string
	if m.strategy, refused = strategyOf(config.UpdateStrategy, c.cfg.fieldManager); refused != "" {
		m.reject(workv1.AppliedManifestFailed, refused)
	}
	rulesKey := ""
	if m.rules != nil {
		rulesKey = m.rules.key
	}
	m.contentHash = hexSHA256(fmt.Appendf(append([]byte(nil), m.raw...), "\x00%v %s %s", m.owned, m.strategy.key(),
		rulesKey))[:32]
	c.claim(w, m)
	if a, ok := w.applied[m.key]; ok {
		c.objects[m.key].expectFingerprint(a.Fingerprint)
		c.ensureWatch(m.key.GroupVersionResource, m.watchScope())
	}
	return true
}

func (m *manifestState) reject(reason, why string) {
	m.rejected, m.attempted, m.reason, m.err = why, true, reason, why
}

func (c *core) discover(gvk schema.GroupVersionKind, mp *mapping) {
	if !mp.inFlight {
		mp.inFlight, mp.outdated, mp.askedAt = true, false, c.now
		c.emit(effDiscover{gvk})
	}
}

// handleUnknownKind fails a manifest whose kind the API server does not know, and
// schedules a retry.
func (c *core) handleUnknownKind(w *workState, m *manifestState, why string) {
	m.attempted = true
	m.reason, m.err = workv1.AppliedManifestFailed, why
	m.failures++
	m.retryAt = c.now.Add(backoff(m.failures))
	c.wakeAt(m.retryAt, w.id)
	c.emit(effWatchKinds{}) // the kind may appear; the shell starts this watch once
}

// handleMapped handles the answer of discovery.
func (c *core) handleMapped(ev evMapped) {
	mp := c.mappings[ev.gvk]
	if mp == nil {
		return
	}
	mp.inFlight = false
	waiting := mp.waitingWorks
	mp.waitingWorks = map[work.ID]bool{}
	if ev.err == nil || ev.err.kind != errTransport {
		mp.failures = 0
	}
	switch {
	case ev.err == nil:
		mp.known, mp.gvr, mp.namespaced, mp.err = true, ev.gvr, ev.namespaced, ""
	case ev.err.kind == errTransport:
		// No answer: run discovery again when the API server answers.
		c.startProbe()
		mp.failures++
		for id := range waiting {
			c.wakeAt(c.now.Add(transportBackoff(mp.failures)), id)
		}
		return
	default:
		mp.err, mp.notBefore = ev.err.message, c.now.Add(kindsSettle)
		for id := range waiting {
			if w := c.works[id]; w != nil {
				for _, m := range w.manifests {
					if m.gvk == ev.gvk && !m.mapped {
						c.handleUnknownKind(w, m, mp.err)
						if mp.outdated { // the kind may exist since the answer
							c.retryKind(w, m, mp.notBefore)
						}
					}
				}
			}
		}
	}
	for id := range waiting {
		c.advanceByID(id)
	}
}

// retryKind begins the back-off of a manifest with an unknown kind again, with a discovery
// at the given time.
func (c *core) retryKind(w *workState, m *manifestState, at time.Time) {
	m.failures = 0
	if !m.retryAt.Equal(at) {
		m.retryAt = at
		c.wakeAt(at, w.id)
	}
}

// rediscover orders discovery for all unknown kinds again, since a
// CustomResourceDefinition changed. The API server may serve the kind a moment later, so
// the back-off of the manifests that wait for it begins again.
func (c *core) rediscover() {
	for gvk, mp := range c.mappings {
		if mp.inFlight {
			mp.outdated = true
			continue
		}
		if mp.known || mp.err == "" {
			continue
		}
		paused := mp.notBefore.After(c.now)
		for id, w := range c.works {
			for _, m := range w.manifests {
				switch {
				case m.gvk != gvk || m.mapped:
				case paused:
					c.retryKind(w, m, mp.notBefore)
				default:
					mp.waitingWorks[id] = true
					m.failures, m.retryAt = 0, time.Time{}
				}
			}
		}
		if len(mp.waitingWorks) > 0 {
			c.discover(gvk, mp)
		}
	}
}
