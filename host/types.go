package host

import (
	"time"
)

// Claim is the right to change this host, as the operator's lease states it.
// The host remembers the last accepted claim and refuses a smaller epoch.
type Claim struct {
	Fleet     string `json:"fleet"`
	Store     string `json:"store"`
	Owner     string `json:"owner"`
	Operation string `json:"operation"`
	Epoch     uint64 `json:"epoch"`
}

// FenceRecord is the content of fence.json: the last claim this host accepted.
type FenceRecord struct {
	Claim
	Released bool `json:"released"`
	// Note says from whom and why a record was taken over.
	Note    string    `json:"note,omitempty"`
	Since   time.Time `json:"since"`
	Version string    `json:"version"`
}

// Hello says who answers.
type Hello struct {
	Version     string `json:"version"`
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	PID         int    `json:"pid"`
	GuardianPID int    `json:"guardian_pid"`
}

// FactsRequest asks for what is true on the host now. Container may be empty.
type FactsRequest struct {
	Container string   `json:"container"`
	DataPaths []string `json:"data_paths,omitempty"`
}

// EngineFacts names the Docker engine and the API version the agent speaks to it.
type EngineFacts struct {
	Version    string `json:"version"`
	APIVersion string `json:"api_version"`
	Root       string `json:"root,omitempty"` // the engine's data root (images, logs)
}

// DiskFacts is the space of the file system that holds Path, in bytes.
type DiskFacts struct {
	Path       string `json:"path"`
	FreeBytes  uint64 `json:"free_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
	Error      string `json:"error,omitempty"` // why it could not be read; the numbers mean nothing then
}

// Sibling is another container of the same node: set aside, staged or failed,
// or any container that has the node's data directory mounted.
type Sibling struct {
	Name          string `json:"name"`
	ID            string `json:"id"`
	Image         string `json:"image"`
	State         string `json:"state"`
	SharesData    bool   `json:"shares_data"`
	Writable      bool   `json:"writable"` // the shared mount is not read-only
	RestartPolicy string `json:"restart_policy"`
}

// OpenTx names a local transaction that has begun and not ended: both agent
// processes died in it, or the host went down. The next writer settles it.
type OpenTx struct {
	Operation string `json:"operation"`
	Container string `json:"container"`
	Tx        string `json:"tx"`
}

// Facts is one reading of the host.
type Facts struct {
	Now            time.Time       `json:"now"`
	Engine         EngineFacts     `json:"engine"`
	Container      *ContainerFacts `json:"container"` // nil: there is no container of that name
	Held           bool            `json:"held"`      // it is the old one of a replace that was held, and stopped: a put-back would start it
	Disks          []DiskFacts     `json:"disks"`
	Updaters       []string        `json:"updaters"`        // containers that replace others by themselves (Watchtower and kin)
	TLSTerminators []string        `json:"tls_terminators"` // containers that look like a TLS proxy in front of the node
	Siblings       []Sibling       `json:"siblings"`
	Unsettled      []OpenTx        `json:"unsettled"`
}

// Kinds of a data directory.
const (
	DataBind   = "bind"
	DataVolume = "volume"
	DataNone   = "none" // inside the container's own layer or on tmpfs: lost with the container
)

// DataDir is where the node keeps its database: the path inside the container
// (facts 5.1 order: QNET_DATA_DIR, /app/data, /app/node_data) and what it is on the host.
type DataDir struct {
	ContainerPath string `json:"container_path"`
	HostPath      string `json:"host_path"`
	Kind          string `json:"kind"`
	Ambiguous     string `json:"ambiguous,omitempty"` // why the path is not certain
}

// ContainerFacts is what may leave the host about one container.
type ContainerFacts struct {
	ID                 string    `json:"id"`
	Name               string    `json:"name"`
	ImageRef           string    `json:"image_ref"`
	ImageID            string    `json:"image_id"`
	ImageDigests       []string  `json:"image_digests,omitempty"`
	Created            time.Time `json:"created"`
	State              string    `json:"state"` // Docker's word: created, running, paused, restarting, removing, exited, dead
	ExitCode           int       `json:"exit_code"`
	OOMKilled          bool      `json:"oom_killed"`
	StartedAt          time.Time `json:"started_at"`  // zero: never started
	FinishedAt         time.Time `json:"finished_at"` // zero: never finished
	RestartCount       int       `json:"restart_count"`
	RestartPolicy      string    `json:"restart_policy"`
	RestartRetries     int       `json:"restart_retries,omitempty"` // bound of on-failure; 0: none, or not read
	EnvNames           []string  `json:"env_names"`
	OneShot            []string  `json:"one_shot"`              // names of variables that must not outlive one start
	LogLevel           string    `json:"log_level"`             // value of QNET_LOG_LEVEL, "" when not set
	HaltHeight         *uint64   `json:"halt_height,omitempty"` // value of QNET_HALT_HEIGHT in blocks, read by the agent alone; nil: not read, not set, or no number, which the node takes for not set
	DataDir            DataDir   `json:"data_dir"`
	StopTimeoutSeconds int       `json:"stop_timeout_seconds"` // 0: not set
	LogPath            string    `json:"log_path,omitempty"`
	LogBytes           int64     `json:"log_bytes,omitempty"` // size of the log files as the host sees them; 0: unknown
	Compose            string    `json:"compose,omitempty"`   // compose project that owns the container
}

// The engine notes when a container started only after its process runs: the first lines of a run may be older by this much.
const (
	lateStart     = time.Second
	lateStartLeft = 100 * time.Millisecond // it waits at least so long between two runs
)

// LogSince is from when on lines of the container's log are of its present, or last, run: a little before the start that the
// engine noted, and after the end of the run before, where that is known.
func (c *ContainerFacts) LogSince() time.Time {
	switch gap := c.StartedAt.Sub(c.FinishedAt); {
	case c.StartedAt.IsZero():
		return c.StartedAt
	case c.FinishedAt.IsZero() && c.Running():
		return c.StartedAt.Add(-lateStart) // its first run
	case gap >= 0 && c.Running():
		return c.StartedAt.Add(-min(lateStart, gap/2))
	}
	return c.StartedAt.Add(-lateStartLeft)
}

// Running says whether a process of the container can exist.
func (c *ContainerFacts) Running() bool {
	return c != nil && stateRuns(c.State)
}

// Image is an image as the host's engine sees it.
type Image struct {
	Ref       string `json:"ref"`
	Digest    string `json:"digest"` // repo@sha256:…; "" for an image without a registry
	ID        string `json:"id"`     // "" until present
	SizeBytes int64  `json:"size_bytes"`
	Build     string `json:"build"` // QNET_BUILD_ID of the image; "" when it has none or is not present
	OS        string `json:"os"`
	Arch      string `json:"arch"`
	Present   bool   `json:"present"`
}

// EnvVar is a public setting given by the operator.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// CarryRequest asks what a successor of Container would take over. OneShot is
// as in StageRequest.
type CarryRequest struct {
	Container   string   `json:"container"`
	ImageDigest string   `json:"image_digest"`
	SetEnv      []EnvVar `json:"set_env,omitempty"`
	OneShot     []EnvVar `json:"one_shot,omitempty"`
}

// Item is one setting by name. It never holds a value of an environment variable.
type Item struct {
	Field string `json:"field"` // Env, Cmd, Labels, HostConfig.Binds …
	Name  string `json:"name"`  // key inside the field, "" for the whole field
	Why   string `json:"why,omitempty"`
}

// DataDirCheck compares the data directory in effect before and after.
type DataDirCheck struct {
	Old DataDir `json:"old"`
	New DataDir `json:"new"`
	OK  bool    `json:"ok"`
	Why string  `json:"why,omitempty"` // why not, when OK is false
}

// CarryReport says what a successor takes over, by name.
type CarryReport struct {
	Carried   []Item       `json:"carried"`   // differs from the old image's default, taken over
	LeftOut   []Item       `json:"left_out"`  // never carried, and why
	Ambiguous []Item       `json:"ambiguous"` // may have been asked for and is not taken over: mostly equal to the old image's default while the new image differs
	Inherited []Item       `json:"inherited"` // equal to the old image's default: comes from the new image
	Set       []Item       `json:"set"`       // given by the operator for this successor
	DataDir   DataDirCheck `json:"data_dir"`
	Warnings  []string     `json:"warnings"`
	OldBuild  string       `json:"old_build"`
	NewBuild  string       `json:"new_build"`
	// NewKnown is false while the new image is not on the host: Ambiguous, DataDir.New and NewBuild are unknown then.
	NewKnown bool `json:"new_known"`
	// HeldPolicy: the successor is created with restart policy `no` and gets the
	// old policy inside the replace, when the old container is proven stopped.
	HeldPolicy bool `json:"held_policy"`

	allow allowance // what Compare may find different, computed beside the creation
}

// StageRequest creates the successor, stopped, under a temporary name.
type StageRequest struct {
	Container   string   `json:"container"`
	ImageDigest string   `json:"image_digest"`
	NextName    string   `json:"next_name"`
	Operation   string   `json:"operation"`
	SetEnv      []EnvVar `json:"set_env,omitempty"`
	// OneShot are variables that a cut-over arms on purpose: the halt height, a
	// rollback. Their removal is part of the same cut-over; others are refused.
	OneShot []EnvVar `json:"one_shot,omitempty"`
}

// Kinds of a Difference.
const (
	DiffMissing = "missing" // set on the old container, absent on the new one
	DiffAdded   = "added"
	DiffChanged = "changed"
)

// Difference is one unexplained difference between two inspects: the path only, no values.
type Difference struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
}

// StageReport is what a stage made.
type StageReport struct {
	CarryReport
	OldID       string       `json:"old_id"`
	NextID      string       `json:"next_id"`
	Unexplained []Difference `json:"unexplained"`
}

// ReplaceRequest puts the staged successor in the place of the running container.
type ReplaceRequest struct {
	Container          string `json:"container"`
	NextName           string `json:"next_name"`
	AsideName          string `json:"aside_name"`
	FailedName         string `json:"failed_name"`
	StopTimeoutSeconds int    `json:"stop_timeout_seconds"` // at least 60 is used, and the container's own if longer
	ExpectOldID        string `json:"expect_old_id"`
	ExpectNextID       string `json:"expect_next_id"`
	// NoPutBack: where the successor cannot start, the old container is not
	// started again and the outcome is Held. The host does so by itself where the
	// old container carries a one-shot variable.
	NoPutBack bool `json:"no_put_back,omitempty"`
	// NextPolicy is the restart policy of the successor; nil: that of the old
	// container, which gets its own back in every case where it is put back.
	NextPolicy *Policy `json:"next_policy,omitempty"`
}

// What a StateRequest brings about besides the policy.
const (
	StateStopped = "stopped"
	StateRunning = "running"
)

// StateRequest brings the node's container into a state, without another one in
// its place. Asking again for what is there already changes nothing, so whoever
// lost the answer may repeat it.
type StateRequest struct {
	Container string `json:"container"`
	ExpectID  string `json:"expect_id"` // the container meant; another under this name is refused with ErrChanged
	// Policy is set before anything is stopped and before anything is started, and
	// read back; nil leaves it.
	Policy *Policy `json:"policy,omitempty"`
	State  string  `json:"state,omitempty"` // StateStopped, StateRunning, "": as it is
	// StopTimeoutSeconds as in ReplaceRequest.
	StopTimeoutSeconds int `json:"stop_timeout_seconds,omitempty"`
}

// PutBackRequest puts the container that was set aside back in its place. After a
// replace that was held it starts the old container, which bears the node's name
// already: then nothing bears AsideName.
type PutBackRequest struct {
	Container          string `json:"container"`
	AsideName          string `json:"aside_name"`
	FailedName         string `json:"failed_name"`
	StopTimeoutSeconds int    `json:"stop_timeout_seconds"`
	ExpectAsideID      string `json:"expect_aside_id,omitempty"` // "" : whatever bears AsideName
	ExpectCurrentID    string `json:"expect_current_id,omitempty"`
	// AllowOneShot lets a container start again that carries a variable which acts
	// at every start; without it such a put-back is refused with ErrOneShot.
	AllowOneShot bool `json:"allow_one_shot,omitempty"`
}

// Outcome of a local transaction.
type Outcome string

// Outcomes of Replace and PutBack.
const (
	Replaced Outcome = "replaced" // the node runs on the new container
	PutBack  Outcome = "put_back" // the node runs on the old container
	InDoubt  Outcome = "in_doubt" // a person must look; the next writer tries once more
	// Held: the successor could not start and the old container must not start
	// again. Both are stopped with restart policy `no`, the old one under the node's
	// name, the successor under the name of a failed one or its own.
	Held Outcome = "held"
)

// ReplaceResult is the end of a Replace or a PutBack. StartedAt is zero where
// nothing was started.
type ReplaceResult struct {
	Outcome   Outcome   `json:"outcome"`
	Killed    bool      `json:"killed"`     // the container that was stopped had to be killed (exit 137 after SIGTERM)
	StoppedAt time.Time `json:"stopped_at"` // engine's time the one ended
	StartedAt time.Time `json:"started_at"` // engine's time the other began
	OldID     string    `json:"old_id"`
	NewID     string    `json:"new_id"`
	Reason    string    `json:"reason,omitempty"`
	LastLines []string  `json:"last_lines,omitempty"` // last log lines of the container that failed
}

// States of a transaction entry.
const (
	TxIntent = "intent"
	TxDone   = "done"
	TxFailed = "failed"
)

// TxEvent is the progress of a local transaction.
type TxEvent struct {
	Step  string    `json:"step"`
	State string    `json:"state"`
	At    time.Time `json:"at"`
	Text  string    `json:"text,omitempty"`
}

// TxEntry is one line of the log a transaction keeps on the host.
type TxEntry struct {
	At        time.Time      `json:"at"`
	Operation string         `json:"operation"`
	Container string         `json:"container"`
	Tx        string         `json:"tx"` // stage, replace, put_back, finish, discard
	By        string         `json:"by"` // agent, guardian
	Step      string         `json:"step"`
	State     string         `json:"state"`
	Text      string         `json:"text,omitempty"`
	Spec      *TxSpec        `json:"spec,omitempty"`    // on the first entry of a transaction
	Outcome   Outcome        `json:"outcome,omitempty"` // on the last
	Result    *ReplaceResult `json:"result,omitempty"`  // on the last, without log lines
	Stage     *TxStage       `json:"stage,omitempty"`   // on the entry of a finished stage
	Data      *DataMark      `json:"data,omitempty"`    // on the intent of a data move
}

// TxSpec is what a replace or a put-back is about: enough for anyone who finds the log to settle it.
type TxSpec struct {
	OldID      string `json:"old_id"`
	NextID     string `json:"next_id"`
	Name       string `json:"name"`
	NextName   string `json:"next_name"`
	AsideName  string `json:"aside_name"`
	FailedName string `json:"failed_name"`
	Policy     Policy `json:"policy"`  // the policy the node's container has in ordinary times
	Timeout    int    `json:"timeout"` // seconds a stop may take before SIGKILL
	DataPath   string `json:"data_path"`
	Back       bool   `json:"back"` // a put-back
	OldStarted string `json:"old_started"`
	Epoch      uint64 `json:"epoch"`
	Hold       string `json:"hold,omitempty"` // why the old container must not be started again; "": it may

	NextPolicy *Policy `json:"next_policy,omitempty"` // of the successor; nil: Policy
}

// nextPolicy is what the successor gets once the old container is proven stopped.
func (s TxSpec) nextPolicy() Policy {
	if s.NextPolicy != nil {
		return *s.NextPolicy
	}
	return s.Policy
}

// Policy is a Docker restart policy.
type Policy struct {
	Name              string `json:"name"`
	MaximumRetryCount int    `json:"maximum_retry_count"`
}

// TxStage is what a stage proved, for the replace to check again.
type TxStage struct {
	OldID       string `json:"old_id"`
	NextID      string `json:"next_id"`
	NextName    string `json:"next_name"`
	OldPrint    string `json:"old_print"`  // digest of the settings of the old container at that time
	NextPrint   string `json:"next_print"` // and of the successor
	Unexplained int    `json:"unexplained"`
	DataOK      bool   `json:"data_ok"`
	DataPath    string `json:"data_path"`
	Policy      Policy `json:"policy"`
}

// Situation is what is really there, beside what the log of an operation says.
type Situation struct {
	Current *ContainerFacts `json:"current"` // bears the node's name
	Aside   *ContainerFacts `json:"aside"`
	Next    *ContainerFacts `json:"next"`
	Failed  *ContainerFacts `json:"failed"`
	Entries []TxEntry       `json:"entries"`
	// Unsettled: a local transaction of this container has begun and not ended; a writer settles it.
	Unsettled bool `json:"unsettled"`
}

// FinishRequest ends the stay of a container that was set aside.
type FinishRequest struct {
	Container string `json:"container"`
	AsideName string `json:"aside_name"`
	LogDir    string `json:"log_dir"`
	Keep      int    `json:"keep"` // archives of this container kept, 0: five
}

// FinishResult names the archive that was written.
type FinishResult struct {
	Archive string   `json:"archive"`
	Bytes   int64    `json:"bytes"`
	Pruned  []string `json:"pruned,omitempty"`
}

// PullProgress is the state of one layer of a pull, in bytes.
type PullProgress struct {
	Layer        string `json:"layer"`
	Status       string `json:"status"`
	CurrentBytes int64  `json:"current_bytes"`
	TotalBytes   int64  `json:"total_bytes"`
}
