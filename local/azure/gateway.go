package azure

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"atoll.dev/internal/pause"
)

// Options are what a Gateway needs; all must be set.
type Options struct {
	Dir      string      // of its files
	Endpoint string      // URL at which programs reach it
	Location string      // the region's name in Azure, for programs
	CA       string      // file of the CA that signs its server certificate, for programs
	Backend  string      // URL of the region's API for ARM
	TLS      *tls.Config // how the region's API proves itself to the gateway
	Log      *slog.Logger
}

// Gateway answers as Entra and forwards as ARM's gateway.
type Gateway struct {
	secrets
	o         Options
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	mux       *http.ServeMux
}

// New returns a Gateway. It makes the files that are missing in the directory.
func New(o Options) (*Gateway, error) {
	s, err := openSecrets(o)
	if err != nil {
		return nil, fmt.Errorf("the stand-in for Azure: %w", err)
	}
	backend, err := url.Parse(o.Backend)
	if err != nil {
		return nil, err
	}
	config := o.TLS.Clone()
	config.Certificates, config.GetClientCertificate = []tls.Certificate{s.gateway}, nil
	g := &Gateway{secrets: s, o: o, transport: &http.Transport{TLSClientConfig: config, IdleConnTimeout: time.Minute},
		mux: http.NewServeMux()}
	g.proxy = &httputil.ReverseProxy{Transport: g.transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(backend)
		g.vouch(r.In, r.Out.Header)
	}, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn)}
	g.mux.HandleFunc("GET /{tenant}/v2.0/.well-known/openid-configuration", g.showIssuer)
	g.mux.HandleFunc("GET /{tenant}/discovery/v2.0/keys", g.showKeys)
	g.mux.HandleFunc("POST /{tenant}/oauth2/v2.0/token", g.giveToken)
	g.mux.HandleFunc("GET /"+adfs+"/.well-known/openid-configuration", g.showFederation)
	g.mux.HandleFunc("POST /"+adfs+"/oauth2/token", g.giveToken)
	g.answerItself()
	g.mux.HandleFunc("/", g.forCustomer(g.forward))
	return g, nil
}

// ServeHTTP answers the requests of programs.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

// Run registers the subscription of the customer with the region, as ARM does, and returns when that is
// done or ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.transport.CloseIdleConnections()
	body := fmt.Appendf(nil, `{"state":"Registered","registrationDate":%q,"properties":{"tenantId":%q}}`,
		time.Now().UTC().Format(time.RFC3339), g.client.Tenant)
	for {
		err := g.register(ctx, body)
		if err == nil || !pause.For(ctx, time.Second) {
			return nil
		}
		g.o.Log.Info("the region does not take the subscription yet", "error", err)
	}
}

func (g *Gateway) register(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, g.o.Backend+"/subscriptions/"+g.client.Subscription+
		"?api-version=2.0", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := (&http.Client{Transport: g.transport, Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16)); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s: %s", answer.Status, text)
	}
	return nil
}

func (g *Gateway) issuer() string { return g.o.Endpoint + "/" + g.client.Tenant + "/v2.0" }

// adfs is the tenant that the clients of Azure name for Active Directory Federation Services (AD FS), which gives
// tokens outside of Microsoft's clouds. Such clients do not ask login.microsoftonline.com whether the stand-in belongs
// to Azure, and not all of them (Terraform's azapi, older `az`) can be told not to ask.
const adfs = "adfs"

func (g *Gateway) showIssuer(w http.ResponseWriter, _ *http.Request) {
	g.showProvider(w, g.issuer(), g.o.Endpoint+"/"+g.client.Tenant+"/oauth2/v2.0")
}

// showFederation answers as AD FS. Its tokens are those of the issuer.
func (g *Gateway) showFederation(w http.ResponseWriter, _ *http.Request) {
	at := g.o.Endpoint + "/" + adfs
	g.showProvider(w, at, at+"/oauth2")
}

// showProvider answers with the document of OpenID Connect that names an issuer and the URLs below an endpoint.
func (g *Gateway) showProvider(w http.ResponseWriter, issuer, oauth2 string) {
	answer(w, http.StatusOK, map[string]any{
		"issuer": issuer, "access_token_issuer": g.issuer(),
		"token_endpoint": oauth2 + "/token", "authorization_endpoint": oauth2 + "/authorize",
		"jwks_uri":                              g.o.Endpoint + "/" + g.client.Tenant + "/discovery/v2.0/keys",
		"response_types_supported":              []string{"token"},
		"token_endpoint_auth_methods_supported": []string{"client_secret_post"},
		"subject_types_supported":               []string{"pairwise"},
		"id_token_signing_alg_values_supported": []string{"ES256"},
	})
}

// keyID names the only key of tokens.
const keyID = "1"

func (g *Gateway) showKeys(w http.ResponseWriter, _ *http.Request) {
	point, err := g.tokenKey.PublicKey.Bytes() // 4, then X and Y
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalServerError", "the key of tokens cannot be read")
		return
	}
	encode := base64.RawURLEncoding.EncodeToString
	answer(w, http.StatusOK, map[string]any{"keys": []map[string]string{{"kty": "EC", "crv": "P-256", "use": "sig",
		"alg": "ES256", "kid": keyID, "x": encode(point[1:33]), "y": encode(point[33:])}}})
}

// tokenLifetime is how long a token is valid.
const tokenLifetime = time.Hour

// giveToken answers the OAuth 2.0 request of an application that has a secret.
func (g *Gateway) giveToken(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	id, secret, isBasic := r.BasicAuth()
	if !isBasic {
		id, secret = r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	}
	tenant := r.PathValue("tenant") // empty: the path is that of AD FS
	switch {
	case tenant != "" && tenant != g.client.Tenant:
		answer(w, http.StatusBadRequest, map[string]string{"error": "invalid_request",
			"error_description": "the tenant does not exist"})
		return
	case r.PostFormValue("grant_type") != "client_credentials":
		answer(w, http.StatusBadRequest, map[string]string{"error": "unsupported_grant_type",
			"error_description": "only client_credentials is possible"})
		return
	case id != g.client.ID || subtle.ConstantTimeCompare([]byte(secret), []byte(g.client.Secret)) != 1:
		answer(w, http.StatusUnauthorized, map[string]string{"error": "invalid_client",
			"error_description": "the client id or the client secret is wrong"})
		return
	}
	now := time.Now()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"iss": g.issuer(), "aud": g.o.Endpoint,
		"tid": g.client.Tenant, "oid": g.client.ID, "appid": g.client.ID, "iat": now.Unix(),
		"nbf": now.Unix(), "exp": now.Add(tokenLifetime).Unix()})
	token.Header["kid"] = keyID
	signed, err := token.SignedString(g.tokenKey)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalServerError", "the token cannot be signed")
		return
	}
	answer(w, http.StatusOK, map[string]any{"token_type": "Bearer", "access_token": signed,
		"expires_in": int(tokenLifetime.Seconds()), "ext_expires_in": int(tokenLifetime.Seconds())})
}

// forward forwards a request of the customer to the region. The life cycle of a subscription is ARM's own: no
// program writes it.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request) {
	if parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/"); len(parts) == 2 && r.Method != http.MethodGet {
		refuse(w, http.StatusForbidden, "AuthorizationFailed",
			"Only Azure Resource Manager itself changes a subscription.")
		return
	}
	g.proxy.ServeHTTP(w, r)
}

// forCustomer returns a handler that calls h for requests with a token of the customer, and refuses all others.
func (g *Gateway) forCustomer(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		_, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return &g.tokenKey.PublicKey, nil },
			jwt.WithValidMethods([]string{"ES256"}), jwt.WithIssuer(g.issuer()), jwt.WithAudience(g.o.Endpoint),
			jwt.WithExpirationRequired())
		if !isBearer || err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer authorization_uri="`+g.o.Endpoint+"/"+g.client.Tenant+`"`)
			refuse(w, http.StatusUnauthorized, "AuthenticationFailed", "Authentication failed.")
			return
		}
		h(w, r)
	}
}

// vouch replaces everything by which a program could claim an identity with what its token proves.
func (g *Gateway) vouch(in *http.Request, h http.Header) {
	for name := range h {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-ms-") && lower != "x-ms-client-request-id" &&
			lower != "x-ms-return-client-request-id" {
			h.Del(name)
		}
	}
	h.Del("Authorization")
	now := time.Now().UTC().Format(time.RFC3339)
	data, _ := json.Marshal(map[string]string{"createdBy": g.client.ID, "createdByType": "Application",
		"createdAt": now, "lastModifiedBy": g.client.ID, "lastModifiedByType": "Application", "lastModifiedAt": now})
	h.Set("X-Ms-Arm-Resource-System-Data", string(data))
	h.Set("X-Ms-Home-Tenant-Id", g.client.Tenant)
	h.Set("X-Ms-Client-Object-Id", g.client.ID)
	h.Set("X-Ms-Client-Principal-Name", g.client.ID)
	h.Set("X-Ms-Correlation-Request-Id", uuid.NewString())
	h.Set("Referer", g.o.Endpoint+in.URL.RequestURI())
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the program is gone
}

// refuse answers with ARM's error body.
func refuse(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, map[string]any{"error": map[string]string{"code": code, "message": message}})
}
