package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

// TestCommandsOfPeopleHaveAnExample checks the help of every command that a customer or an operator types: it has an
// example, and a command that lists or shows something has the flag -o.
func TestCommandsOfPeopleHaveAnExample(t *testing.T) {
	root := newRoot(&terminal.Session{})
	checked := 0
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		checked++
		if cmd.Example == "" {
			t.Errorf("%s: its help has no example", cmd.CommandPath())
		}
		verb, _, _ := strings.Cut(cmd.Short, " ")
		isStream := cmd.Name() == "logs"
		if (verb == "List" || verb == "Show") && !isStream && cmd.Flags().Lookup("output") == nil {
			t.Errorf("%s: it shows something and has no flag -o", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	for _, cmd := range root.Commands() {
		if cmd.GroupID == useGroup || cmd.GroupID == operateGroup {
			check(cmd)
		}
	}
	if checked < 100 {
		t.Errorf("%d commands were checked; the groups of the root command have more", checked)
	}
}

// TestGroupsOfCommandsRefuseUnknownVerbs: a mistyped verb is an error with a next step, and not a help text with the
// exit code 0, which a script takes for success.
func TestGroupsOfCommandsRefuseUnknownVerbs(t *testing.T) {
	var groups []string
	var find func(cmd *cobra.Command)
	find = func(cmd *cobra.Command) {
		takesArgument := cmd.CommandPath() == "atoll mc orphans" // the name of a management cluster
		if cmd.HasSubCommands() && !takesArgument {
			groups = append(groups, cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			find(sub)
		}
	}
	find(newRoot(&terminal.Session{}))
	for _, path := range groups {
		var errw strings.Builder
		args := append(strings.Fields(path)[1:], "nonsense-verb")
		if code := Main(args, strings.NewReader(""), io.Discard, &errw); code != 1 ||
			!strings.Contains(errw.String(), `unknown command "nonsense-verb" for "`+path+`"; see `) {
			t.Errorf("%s nonsense-verb: code %d, %s", path, code, errw.String())
		}
	}
	if len(groups) < 25 {
		t.Errorf("%d groups were checked; there are more", len(groups))
	}
}
