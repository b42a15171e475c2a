package terminal

import (
	"io"
	"strconv"

	"atoll.dev/api/platform"
)

// QuotaTable prints the quotas of an account as text.
func QuotaTable(w io.Writer, quotas platform.QuotaList) {
	rows := [][]string{{"QUOTA", "USED", "LIMIT", "DEFAULT"}}
	number := func(n *int64) string {
		if n == nil {
			return "none"
		}
		return strconv.FormatInt(*n, 10)
	}
	for _, q := range quotas.Items {
		rows = append(rows, []string{q.Name, strconv.FormatInt(q.Used, 10), number(q.Limit), number(q.Default)})
	}
	Table(w, rows)
}
