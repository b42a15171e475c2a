// Package queuemetrics takes the metrics of upstream's work queues away.
//
// Each named queue of client-go that has metrics wakes twice a second to update two of them. A plane has some hundred
// named queues, most of them always empty, so these were most of what an idle plane did.
package queuemetrics

import (
	_ "unsafe" // for go:linkname

	"k8s.io/client-go/util/workqueue"
)

// provider is upstream's variable: the provider of metrics of each queue that names none. client-go lets a program set
// it once, and upstream's packages of Prometheus metrics do so when they are initialized. It has no setting for a queue
// without metrics: only its own initial provider makes one. If a later client-go has no such variable, the program
// does not link.
//
//go:linkname provider k8s.io/client-go/util/workqueue.globalMetricsProvider
var provider workqueue.MetricsProvider

// initial is upstream's provider of no metrics. Go initializes packages that are ready in the order of their paths, so
// this runs before k8s.io/component-base sets another one.
var initial = provider

// Disable lets queues that are made from now on have no metrics.
func Disable() { provider = initial }
