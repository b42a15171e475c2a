package backup

import "time"

// For tests of package backup_test, which import storetest.
var (
	NewMemoryStore = newMemoryStore
	StartS3        = startS3
	WriteConfig    = writeConfig
)

// Advance sets the store's clock forward.
func (m *memoryStore) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behind -= d
}
