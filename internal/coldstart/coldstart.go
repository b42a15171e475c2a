// Package coldstart makes the start of a program cheaper: until End, the heap may grow to five times what is in use
// before the garbage collector runs. While a program initializes its packages, almost all that it allocates stays in
// use, so each collection costs much and finds little: of the start of `atoll` it was a quarter.
//
// To import it is enough: Go initializes packages without a ready dependency in the order of their paths, so this one
// comes before those that allocate most. GOGC in the environment takes precedence. A program that runs for long calls
// End; one that ends after a command needs not.
//
// It imports nothing of Atoll.
package coldstart

import (
	"os"
	"runtime/debug"
	"sync"
)

// startPercent is the growth of the heap, in percent, after which the collector runs until End. Go's collector runs
// first at 4 MB times this value, so at 16 MB, which the start of atoll does not reach.
const startPercent = 400

// usualPercent is the percentage before the start, and isChanged whether the start has another.
var usualPercent, isChanged = delayCollector()

func delayCollector() (usualPercent int, isChanged bool) {
	if os.Getenv("GOGC") != "" {
		return 0, false
	}
	return debug.SetGCPercent(startPercent), true
}

// End returns the garbage collector to its usual work. Only the first call does something.
var End = sync.OnceFunc(func() {
	if isChanged {
		debug.SetGCPercent(usualPercent)
	}
})
