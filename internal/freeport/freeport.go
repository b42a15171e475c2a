// Package freeport finds a free port of 127.0.0.1 for a program that listens on it later, or listens on it again after
// a restart.
//
// The system gives ports from 32768 on to outgoing connections and to listeners on port 0: another process can get such
// a port between the search and the program's start. This package takes ports from 12000 to 29999.
//
// Tests and benchmarks use it, and Mosquitto that runs for them. Package local keeps the ports of a region.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

const (
	firstPort = 12000
	ports     = 18000
	attempts  = 1000
)

// Listen listens on a free port.
func Listen() (l net.Listener, err error) {
	for range attempts {
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(ports))); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no free port of 127.0.0.1 in %d attempts: %w", attempts, err)
}

// Address returns the address of a free port, "127.0.0.1:PORT". Nothing listens on it when Address returns.
func Address() (string, error) {
	l, err := Listen()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
