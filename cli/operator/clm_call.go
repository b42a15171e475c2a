package operator

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/certfile"
)

// This file and the other clm_*.go have the operators' commands about CLM's resources. "atoll clm" itself, the server,
// is in cli/services.

// CLM returns the commands below "atoll clm" that call the lifecycle manager.
func CLM(session *terminal.Session) []*cobra.Command {
	return []*cobra.Command{
		clmGet(session), clmList(session), clmWatch(session), clmHistory(session), clmWhy(session), clmWait(session),
		clmCreate(session), clmPatch(session), clmDelete(session), clmForceDelete(session), clmReconcile(session),
	}
}

// clmFlags are the flags that select a lifecycle manager and the identity of its caller.
type clmFlags struct {
	*operatorFlags
	token string // file
}

// addCLMFlags adds the flags of clmFlags to cmd.
func addCLMFlags(cmd *cobra.Command) *clmFlags {
	o := &clmFlags{operatorFlags: addOperatorFlags(cmd, "clm", "CLM's REST API")}
	cmd.Flags().StringVar(&o.token, "token-file", "",
		"with --endpoint: file with a bearer token, instead of a certificate")
	return o
}

// clmConnection is an open connection to CLM, with the kinds that it has.
type clmConnection struct {
	*clmclient.Client
	kinds []clmclient.ResourceKind
}

// callCLM calls f with a client of CLM, and explains the error that f returns.
func callCLM(session *terminal.Session, ctx context.Context, o *clmFlags,
	f func(context.Context, *clmConnection) error) error {
	m, err := dialCLM(session, o)
	if err != nil {
		return err
	}
	defer m.Close()
	ctx = asOperator(ctx)
	l := &clmConnection{Client: m}
	if l.kinds, err = m.Kinds(ctx); err == nil {
		err = f(ctx, l)
	}
	return explainError(err)
}

// dialCLM returns a client of the CLM that the flags name, by default that of the home.
func dialCLM(session *terminal.Session, o *clmFlags) (*clmclient.Client, error) {
	options := clmclient.Options{Endpoint: o.endpoint, Budget: 3 * time.Second}
	if o.endpoint == "" {
		home, err := session.Home()
		if err != nil {
			return nil, err
		}
		if options.Endpoint, err = home.CLMAddress(); err != nil {
			return nil, err
		}
	}
	if o.token == "" {
		config, err := operatorTLS(session, o.operatorFlags)
		if err != nil {
			return nil, err
		}
		options.TLS = config
		return clmclient.New(options)
	}
	token, err := os.ReadFile(o.token)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	options.Token = strings.TrimSpace(string(token))
	if o.ca != "" {
		pool, err := certfile.ReadPool(o.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		options.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
	}
	return clmclient.New(options)
}

// explainError adds to an error of CLM the invalid fields and the next step for the caller.
func explainError(err error) error {
	e, ok := errors.AsType[*remote.Error](err)
	if !ok {
		return err
	}
	advice := ""
	switch {
	case e.Code == remote.CodeUnreachable:
		advice = "is the region up? See `atoll status`"
	case e.Status == http.StatusUnauthorized:
		advice = "give --cert, --key and --ca, or --token-file"
	case e.Status == http.StatusGone:
		advice = "leave --cursor out to begin with the existing resources"
	}
	for _, f := range e.Fields {
		if !strings.Contains(e.Reason, f.Message) {
			advice = strings.Join([]string{f.Field + ": " + f.Message, advice}, "; ")
		}
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, strings.TrimSuffix(advice, "; "))
}

// collection returns the collection of a kind, which is given by its name or its plural.
func (l *clmConnection) collection(word string) (clmclient.Collection, error) {
	if word == "all" || word == string(clmclient.AllKinds) {
		return clmclient.AllKinds, nil
	}
	names := make([]string, len(l.kinds))
	for i, k := range l.kinds {
		if strings.EqualFold(word, k.Kind) || strings.EqualFold(word, string(k.Plural)) {
			return k.Plural, nil
		}
		names[i] = string(k.Plural)
	}
	return "", fmt.Errorf("there is no kind %q here; there are %s, and all", word, strings.Join(names, ", "))
}

// kindOf returns the kind of a collection, "" for all kinds.
func (l *clmConnection) kindOf(plural clmclient.Collection) string {
	for _, k := range l.kinds {
		if k.Plural == plural {
			return k.Kind
		}
	}
	return ""
}

// pluralOf returns the collection of a kind, all kinds for an unknown one.
func (l *clmConnection) pluralOf(kind string) clmclient.Collection {
	for _, k := range l.kinds {
		if k.Kind == kind {
			return k.Plural
		}
	}
	return clmclient.AllKinds
}

// parseTarget splits the arguments that name a resource: KIND ID, KIND NAME, or either with a slash
// between. name is "" when the arguments have a kind only.
func (l *clmConnection) parseTarget(args []string) (in clmclient.Collection, name string, err error) {
	kind, name, _ := strings.Cut(args[0], "/")
	if len(args) > 1 {
		if name != "" {
			return "", "", fmt.Errorf("%s names a resource; %q is one too many", args[0], args[1])
		}
		name = args[1]
	}
	in, err = l.collection(kind)
	return in, name, err
}

// findOne finds the resource that the arguments of a command name.
func (l *clmConnection) findOne(ctx context.Context, args []string) (clmclient.Collection, clmclient.Resource, error) {
	in, name, err := l.parseTarget(args)
	if err != nil {
		return in, clmclient.Resource{}, err
	}
	if name == "" {
		return in, clmclient.Resource{}, fmt.Errorf("which of %s? Give an id or a name; `atoll clm list %s` shows them",
			in, in)
	}
	r, err := l.find(ctx, in, name)
	if remote.StatusOf(err) == http.StatusNotFound {
		err = fmt.Errorf("%w; `atoll clm list %s` shows what there is", err, in)
	}
	if err == nil && in == clmclient.AllKinds {
		in = l.pluralOf(r.Kind)
	}
	return in, r, err
}

// find finds a resource by its id or by its name.
func (l *clmConnection) find(ctx context.Context, in clmclient.Collection, name string) (clmclient.Resource, error) {
	if uuid.Validate(name) == nil {
		return l.Get(ctx, in, name, "")
	}
	return l.Named(ctx, in, name)
}

// requireResource returns an error unless the arguments name a resource: KIND ID, KIND NAME, or one with a slash.
func requireResource(_ *cobra.Command, args []string) error {
	if len(args) == 2 || len(args) == 1 && strings.Contains(args[0], "/") {
		return nil
	}
	return errors.New("name a resource by KIND and ID or NAME, such as: clusters my-cluster")
}

// completeResources completes KIND and then NAME.
func completeResources(session *terminal.Session, o *clmFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		var words []cobra.Completion
		err := callCLM(session, ctx, o, func(ctx context.Context, l *clmConnection) error {
			switch len(args) {
			case 0:
				for _, k := range l.kinds {
					words = append(words, cobra.CompletionWithDesc(string(k.Plural), k.Kind))
				}
				words = append(words, cobra.CompletionWithDesc("all", "resources of every kind"))
			case 1:
				in, err := l.collection(args[0])
				if err != nil {
					return err
				}
				q := clmclient.ResourceQuery{Size: 100, Order: "name", Fields: "name,kind"}
				if word != "" {
					q.Search = "name like '" + strings.ReplaceAll(word, "'", "''") + "%'"
				}
				page, err := l.List(ctx, in, q)
				if err != nil {
					return err
				}
				for _, r := range page.Items {
					words = append(words, cobra.CompletionWithDesc(r.Name, r.Kind+" "+r.ID))
				}
			}
			return nil
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// selectFlags are the flags that select resources of a kind.
type selectFlags struct {
	search, owner string
	labels        map[string]string
}

// addSelectFlags adds the flags of selectFlags to cmd.
func addSelectFlags(cmd *cobra.Command) *selectFlags {
	s := &selectFlags{}
	cmd.Flags().StringVar(&s.search, "search", "",
		`only resources that match this search, such as "spec.region='eu' and status.conditions.Reconciled='False'"`)
	cmd.Flags().StringToStringVar(&s.labels, "label", nil, "only resources with this label, k=v; repeatable")
	cmd.Flags().StringVar(&s.owner, "owner", "", "only resources whose owner has this id")
	return s
}

// condition returns the flags as one search, "" when none is set.
func (s *selectFlags) condition() string {
	var terms []string
	if s.search != "" {
		terms = append(terms, "("+s.search+")")
	}
	for _, pair := range sortedLabels(s.labels) {
		terms = append(terms, remote.SearchEqual(`labels."`+strings.ReplaceAll(pair[0], `"`, `""`)+`"`, pair[1]))
	}
	if s.owner != "" {
		terms = append(terms, remote.SearchEqual("owner_id", s.owner))
	}
	if len(terms) == 1 {
		return cmp.Or(s.search, terms[0])
	}
	return strings.Join(terms, " and ")
}
