package storetest

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"atoll.dev/backup"
)

// Memory is a backup.Store in memory, with faults. Use NewMemory.
type Memory struct {
	mu      sync.Mutex
	objects map[string][]byte
	stored  map[string]time.Time
	fault   func(operation, name string) error
}

// NewMemory returns a store without objects and faults.
func NewMemory() *Memory {
	return &Memory{objects: map[string][]byte{}, stored: map[string]time.Time{}}
}

// SetFault makes each later call fail for which fault returns an error. The operations are "put", "get", "list" (with
// the prefix as the name), "delete" and "age". nil: no call fails. fault must not use the store.
func (m *Memory) SetFault(fault func(operation, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// check returns the fault of a call; the caller holds the lock.
func (m *Memory) check(operation, name string) error {
	if m.fault == nil {
		return nil
	}
	return m.fault(operation, name)
}

// Put implements backup.Store.
func (m *Memory) Put(_ context.Context, name string, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check("put", name); err != nil {
		return err
	}
	m.objects[name], m.stored[name] = bytes.Clone(content), time.Now()
	return nil
}

// Get implements backup.Store.
func (m *Memory) Get(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check("get", name); err != nil {
		return nil, err
	}
	object, isThere := m.objects[name]
	if !isThere {
		return nil, backup.ErrNotFound
	}
	return bytes.Clone(object), nil
}

// List implements backup.Store.
func (m *Memory) List(_ context.Context, prefix string) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check("list", prefix); err != nil {
		return nil, err
	}
	for name := range m.objects {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Delete implements backup.Store.
func (m *Memory) Delete(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check("delete", name); err != nil {
		return err
	}
	delete(m.objects, name)
	return nil
}

// Age implements backup.Store.
func (m *Memory) Age(_ context.Context, name string) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check("age", name); err != nil {
		return 0, err
	}
	if _, isThere := m.objects[name]; !isThere {
		return 0, backup.ErrNotFound
	}
	return time.Since(m.stored[name]), nil
}

// MakeOlder makes the present objects so much older.
func (m *Memory) MakeOlder(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, at := range m.stored {
		m.stored[name] = at.Add(-d)
	}
}

// Replace stores an object, or removes it when content is nil. No fault applies.
func (m *Memory) Replace(name string, content []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if content == nil {
		delete(m.objects, name)
		return
	}
	m.objects[name], m.stored[name] = bytes.Clone(content), time.Now()
}

// Objects returns a copy of all objects by name. No fault applies.
func (m *Memory) Objects() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string][]byte, len(m.objects))
	for name, content := range m.objects {
		all[name] = bytes.Clone(content)
	}
	return all
}
