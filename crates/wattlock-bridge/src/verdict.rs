//! What an error code of librdkafka or of a broker means for the bridge: one table.

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

/// What helps against an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Time, or a new start from the committed offsets.
    Retry,
    /// Nothing that the bridge can do, as long as this record is what it is and the setting that is named stands. The
    /// record's partition stops.
    Record(&'static str),
    /// The same for the size of a record, which ends the bridge.
    Size(&'static str),
    /// Nothing, as long as what is named stands. The bridge ends.
    Stop(&'static str),
}

const SIZE: &str =
    "raise max.message.bytes of the topic that is written, or message.max.bytes of [kafka] or the brokers";

/// Sorts a code. Every code that is not named may pass: elections, coordinators, networks, epochs.
pub fn judge(code: Code) -> Verdict {
    use Verdict::{Record, Retry, Size, Stop};
    match code {
        Code::InvalidTimestamp => Record(
            "its time is outside message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
        ),
        Code::InvalidRecord => Record(
            "a compacted topic takes no record without a key; else its time is outside message.timestamp.before.max.ms \
             and message.timestamp.after.max.ms",
        ),
        Code::UnknownPartition => {
            Record("the topic that is written lacks the partition: add partitions to it")
        }
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => Size(SIZE),
        Code::TopicAuthorizationFailed => {
            Stop("an ACL is missing: READ on topics that are read, WRITE on topics that are written")
        }
        Code::GroupAuthorizationFailed => Stop("an ACL is missing: READ on the group"),
        Code::ClusterAuthorizationFailed => Stop("an ACL is missing: IDEMPOTENT_WRITE on the cluster"),
        Code::TransactionalIdAuthorizationFailed => {
            Stop("an ACL is missing: WRITE on transactional ids that begin with the group's name")
        }
        Code::DelegationTokenAuthorizationFailed | Code::DelegationTokenExpired => {
            Stop("the delegation token of [kafka]")
        }
        Code::InvalidTransactionTimeout => {
            Stop("transaction.timeout_ms is above the brokers' transaction.max.timeout.ms")
        }
        Code::InvalidSessionTimeout => Stop(
            "session.timeout.ms of [kafka] is outside the brokers' group.min.session.timeout.ms and \
             group.max.session.timeout.ms",
        ),
        Code::InconsistentGroupProtocol | Code::UnsupportedAssignor => {
            Stop("members of the group have another partition.assignment.strategy, or another kind of group")
        }
        Code::InvalidGroupId => Stop("group: brokers do not take this name"),
        Code::GroupMaxSizeReached => Stop("the group has as many members as the brokers' group.max.size"),
        Code::FencedInstanceId | Code::UnreleasedInstanceId => {
            Stop("another member has this name: give each an instance of its own")
        }
        Code::UnsupportedVersion | Code::UnsupportedFeature | Code::UnsupportedForMessageFormat => {
            Stop("the brokers are too old for transactions, or the topic's message format is")
        }
        Code::UnsupportedCompressionType => Stop("compression.type of [kafka] or of the topic"),
        Code::InvalidRequiredAcks => Stop("acks of [kafka]"),
        Code::InvalidTopic => Stop("brokers do not take this topic's name"),
        Code::InvalidPartitions | Code::InvalidReplicationFactor | Code::InvalidReplicaAssignment => {
            Stop("brokers do not make a topic with these partitions or replicas")
        }
        Code::PolicyViolation => Stop("a policy of the brokers forbids it"),
        Code::InvalidConfig | Code::InvalidArgument | Code::NotConfigured => Stop("a setting of [kafka]"),
        Code::InvalidRequest | Code::InvalidCommitOffsetSize | Code::OffsetMetadataTooLarge => {
            Stop("brokers do not take this request")
        }
        Code::SecurityDisabled => Stop("the brokers have no security, which a setting of [kafka] asks for"),
        _ => Retry,
    }
}

/// Whether an error may pass.
pub fn passes(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(|code| judge(code) == Verdict::Retry)
}

/// How much a code says of why records were not delivered: what is given up because of another record says least.
pub fn weight(code: Option<Code>) -> u8 {
    match code {
        Some(Code::PurgeQueue | Code::PurgeInflight) => 0,
        Some(Code::InvalidDifferentRecord) => 1,
        Some(code) if judge(code) == Verdict::Retry => 2,
        None => 2,
        Some(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_nothing_else() {
        use Code::*;
        let passes = [
            BrokerTransportFailure,
            AllBrokersDown,
            MessageTimedOut,
            OperationTimedOut,
            TimedOutQueue,
            NotCoordinator,
            CoordinatorLoadInProgress,
            CoordinatorNotAvailable,
            LeaderNotAvailable,
            NotLeaderForPartition,
            NotEnoughReplicas,
            NotEnoughReplicasAfterAppend,
            RequestTimedOut,
            NetworkException,
            KafkaStorageError,
            RebalanceInProgress,
            IllegalGeneration,
            UnknownMemberId,
            FencedLeaderEpoch,
            UnknownLeaderEpoch,
            Fenced,
            ProducerFenced,
            InvalidProducerEpoch,
            InvalidProducerIdMapping,
            ConcurrentTransactions,
            UnknownTopicId,
            UnknownTopicOrPartition,
            UnstableOffsetCommit,
            OffsetNotAvailable,
            ThrottlingQuotaExceeded,
            AutoOffsetReset,
            OutOfOrderSequenceNumber,
            UnknownProducerId,
            TransactionCoordinatorFenced,
            InvalidMessage,
            Unknown,
        ];
        passes.into_iter().for_each(|code| assert_eq!(judge(code), Verdict::Retry, "{code:?}"));
        let stay = [
            InvalidTimestamp,
            InvalidRecord,
            UnknownPartition,
            MessageSizeTooLarge,
            MessageBatchTooLarge,
            TopicAuthorizationFailed,
            GroupAuthorizationFailed,
            ClusterAuthorizationFailed,
            PolicyViolation,
            TransactionalIdAuthorizationFailed,
            InvalidTransactionTimeout,
            InvalidSessionTimeout,
            InvalidConfig,
            InconsistentGroupProtocol,
            FencedInstanceId,
            UnsupportedVersion,
            UnsupportedForMessageFormat,
            InvalidTopic,
            InvalidPartitions,
            InvalidReplicationFactor,
            UnsupportedCompressionType,
            InvalidGroupId,
        ];
        stay.into_iter().for_each(|code| assert_ne!(judge(code), Verdict::Retry, "{code:?}"));
    }
}
