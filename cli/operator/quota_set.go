package operator

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
)

func quotaSet(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set --account ID QUOTA=LIMIT...", Args: cobra.MinimumNArgs(1),
		Short: "Set limits of an account; for operators",
		Long: `Sets limits of an account, from 0 to 1000000000 each; "default" is the region's default.
The limit counts from the next request on. A limit below the use deletes nothing; the
region admits nothing more until the use is below it.`,
		Example: `  atoll quota set --account 123456789012 clusters=20 nodes=500
  atoll quota set --account 123456789012 nodes=default`,
	}
	return quotaCommand(session, cmd, func(ctx context.Context, api *client.Client, account client.AccountID,
		args []string) (list platform.QuotaList, err error) {
		limits, err := readLimits(args)
		if err != nil {
			return list, err
		}
		return api.SetAccountQuotas(ctx, account, limits)
	})
}

// readLimits reads arguments of the form QUOTA=LIMIT. The region checks names and limits.
func readLimits(args []string) (map[string]*int64, error) {
	limits := map[string]*int64{}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		if _, twice := limits[name]; !ok || name == "" || twice {
			return nil, fmt.Errorf("%q is not a quota with its limit, such as clusters=20, or names a quota twice", arg)
		}
		limits[name] = nil
		if text == "default" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: the limit is neither a whole number nor default", arg)
		}
		limits[name] = &n
	}
	return limits, nil
}
