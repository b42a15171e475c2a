package cluster

import (
	"fmt"
	"time"
)

// UpgradeData is the state of the last upgrade of a control plane, in a report of AdapterHostedCluster. It has the
// shape of HostedCluster's status.upgrade.
type UpgradeData struct {
	From            string     `json:"from"`
	To              string     `json:"to"` // "": there was no upgrade
	Phase           string     `json:"phase"`
	Message         string     `json:"message"`
	StartedAt       *time.Time `json:"startedAt"`
	SoakUntil       *time.Time `json:"soakUntil"`
	CompletedAt     *time.Time `json:"completedAt"`
	EmulatedVersion string     `json:"emulatedVersion"`
	CopyUsed        bool       `json:"copyUsed"`
}

// Phases of an upgrade, as package api/hypershift describes them.
const (
	UpgradeRuns           = "Upgrading"
	UpgradeSoaks          = "Soaking"
	UpgradeCompleted      = "Completed"
	UpgradeFailed         = "Failed"
	UpgradeRollsBack      = "RollingBack"
	UpgradeRolledBack     = "RolledBack"
	UpgradeRollbackFailed = "RollbackFailed"
)

// UpgradeReport returns the state of the last upgrade; an empty To when there was none.
func (d HostedClusterData) UpgradeReport() UpgradeData { return decodeData[UpgradeData](d.Upgrade) }

// CheckRollback returns why a cluster cannot go back to the release before its last upgrade, and nil when it can. The
// error names the next step.
func (u UpgradeData) CheckRollback(now time.Time) error {
	switch {
	case u.To == "":
		return fmt.Errorf("it was not upgraded; there is no release before")
	case u.Phase == UpgradeCompleted, u.Phase == UpgradeSoaks && u.SoakUntil != nil && now.After(*u.SoakUntil):
		return fmt.Errorf("the time in which it could go back to %s has ended; restore it, if it has backups "+
			"(atoll cluster backups)", u.From)
	case u.Phase == UpgradeRolledBack:
		return fmt.Errorf("it has gone back from %s to %s already", u.To, u.From)
	}
	return nil
}
