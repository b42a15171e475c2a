package services

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/front/arm"
	"atoll.dev/internal/rest"
	"atoll.dev/ops"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// azureFlags are the flags of `atoll platform` about the API for Azure Resource Manager.
type azureFlags struct {
	addr       string
	metadata   string
	location   string
	mode       string
	retryAfter time.Duration
	referers   []string
	notify     []string
	tokens     azureTokenFlags
}

func (f *azureFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.addr, "azure-listen", "",
		"address of the API for Azure Resource Manager, such as 0.0.0.0:8444; it needs --azure-metadata and --clm")
	cmd.Flags().StringVar(&f.metadata, "azure-metadata", "", "file or https URL of the client certificates that Azure "+
		"Resource Manager publishes; read again every 5 s, or every 10 minutes")
	cmd.Flags().StringVar(&f.location, "azure-location", "", "the region's name in Azure (default that of --region)")
	cmd.Flags().StringVar(&f.mode, "azure-mode", string(arm.Compatible),
		"compatible (as ARO HCP answers) or strict (by the contract for resource providers)")
	cmd.Flags().DurationVar(&f.retryAfter, "azure-retry-after", 10*time.Second,
		"time after which clients read an operation again, at least 1s")
	cmd.Flags().StringSliceVar(&f.referers, "azure-referer", []string{"management.azure.com"},
		"hosts that the Referer of a request may name; URLs in answers then begin with it")
	cmd.Flags().StringSliceVar(&f.notify, "azure-notify-host", nil, "hosts that get notifications about ended "+
		"operations: management.azure.com, or .azure.com for all below (default none)")
	f.tokens.addFlags(cmd)
}

// open opens the listener for Azure Resource Manager; it is nil without --azure-listen.
func (f *azureFlags) open(replica *replicaFlags) (net.Listener, error) {
	switch {
	case f.addr == "" && f.metadata == "":
		return nil, nil
	case f.addr == "" || f.metadata == "":
		return nil, errors.New("--azure-listen and --azure-metadata need each other")
	case f.mode != string(arm.Compatible) && f.mode != string(arm.Strict):
		return nil, fmt.Errorf("--azure-mode %s is neither %s nor %s", f.mode, arm.Compatible, arm.Strict)
	case f.retryAfter < time.Second:
		return nil, fmt.Errorf("--azure-retry-after %s is less than 1s", f.retryAfter)
	}
	if err := f.tokens.check(f.addr); err != nil {
		return nil, err
	}
	return replica.listen(f.addr)
}

// start serves the API for Azure Resource Manager on l, with the limits and the drain of server.
func (f *azureFlags) start(p *parts, s *System, l net.Listener, db *store.Store, region string, denials access.Denials,
	signatures access.Signatures, server rest.Server, identity *pki.Identity) error {
	if s.CLM == nil {
		return errors.New("--azure-listen needs --clm")
	}
	certificates, err := arm.NewCertificates(p.ctx, f.metadata, s.Log)
	if err != nil {
		return fmt.Errorf("--azure-metadata: %w", err)
	}
	tokens, err := f.tokens.newVerifier(identity.Certificate(), signatures, s.Log)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	var notifier *ops.Notifier
	if len(f.notify) > 0 {
		notifier = &ops.Notifier{Hosts: lowerCase(f.notify)}
	}
	front := arm.New(arm.Options{Store: db, Keys: s.Keys, CLM: s.CLM, Certificates: certificates, Tokens: tokens,
		Location: cmp.Or(f.location, region), Holder: host + "/" + uuid.NewString(), Mode: arm.Mode(f.mode),
		RetryAfter: f.retryAfter, Referers: lowerCase(f.referers), Notifier: notifier, Denials: denials, Log: s.Log})
	p.runToEnd(front.Run)
	server.Handler = front
	server.Limits.Metrics = nil // the Platform API's listener has them
	s.serve(p, l, "azure", front.ServerTLS(identity.ServerTLS(pki.CertificateOptional)), server)
	return nil
}

func lowerCase(texts []string) []string {
	lower := make([]string, len(texts))
	for i, text := range texts {
		lower[i] = strings.ToLower(text)
	}
	return lower
}
