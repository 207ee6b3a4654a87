; The actions of a household, as Arboretum's ALFWorld engine plays them.
;
; Generated games carry this text. It is also the yardstick for game files of other makers: each of their actions
; must mean the same as the action of that name here (order of conditions and names of variables aside; the types of
; appliances and knives are the file's own affair).

(define (domain alfred)
  (:requirements :adl :typing)

  (:types agent location receptacle object rtype otype)

  (:predicates
    (atLocation ?a - agent ?l - location)
    (receptacleAtLocation ?r - receptacle ?l - location)
    (objectAtLocation ?o - object ?l - location)
    (inReceptacle ?o - object ?r - receptacle)
    (inReceptacleObject ?inner - object ?outer - object)
    (receptacleType ?r - receptacle ?t - rtype)
    (objectType ?o - object ?t - otype)
    (canContain ?rt - rtype ?ot - otype)
    (holds ?a - agent ?o - object)
    (holdsAny ?a - agent)
    (openable ?r - receptacle)
    (opened ?r - receptacle)
    (pickupable ?o - object)
    (isReceptacleObject ?o - object)
    (cleanable ?o - object)
    (heatable ?o - object)
    (coolable ?o - object)
    (sliceable ?o - object)
    (toggleable ?o - object)
    (isClean ?o - object)
    (isHot ?o - object)
    (isCool ?o - object)
    (isSliced ?o - object)
    (isToggled ?o - object)
    (checked ?x))   ; means nothing, but TextWorld leaves out actions without an effect

  (:action look :parameters (?a - agent ?l - location)
    :precondition (atLocation ?a ?l)
    :effect (checked ?l))

  (:action inventory :parameters (?a - agent)
    :precondition (and)
    :effect (checked ?a))

  (:action help :parameters (?a - agent)
    :precondition (and)
    :effect (checked ?a))

  (:action examineReceptacle :parameters (?a - agent ?r - receptacle)
    :precondition (exists (?l - location) (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l)))
    :effect (checked ?r))

  (:action examineObject :parameters (?a - agent ?o - object)
    :precondition (holds ?a ?o)
    :effect (checked ?o))

  (:action GotoLocation :parameters (?a - agent ?from - location ?to - location ?r - receptacle)
    :precondition (and (atLocation ?a ?from) (receptacleAtLocation ?r ?to))
    :effect (and (not (atLocation ?a ?from)) (atLocation ?a ?to)))

  (:action OpenObject :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (not (opened ?r)))
    :effect (opened ?r))

  (:action CloseObject :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (opened ?r))
    :effect (not (opened ?r)))

  (:action PickupObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (or (not (openable ?r)) (opened ?r))
                       (inReceptacle ?o ?r) (pickupable ?o) (not (holdsAny ?a)))
    :effect (and (holds ?a ?o) (holdsAny ?a) (not (inReceptacle ?o ?r)) (not (objectAtLocation ?o ?l))))

  (:action PutObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (or (not (openable ?r)) (opened ?r))
                       (holds ?a ?o) (objectType ?o ?ot) (receptacleType ?r ?rt) (canContain ?rt ?ot))
    :effect (and (inReceptacle ?o ?r) (objectAtLocation ?o ?l) (not (holds ?a ?o)) (not (holdsAny ?a))))

  (:action CleanObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (receptacleType ?r SinkBasinType)
                       (holds ?a ?o) (cleanable ?o))
    :effect (isClean ?o))

  (:action HeatObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (receptacleType ?r MicrowaveType)
                       (holds ?a ?o) (heatable ?o))
    :effect (and (isHot ?o) (not (isCool ?o))))

  (:action CoolObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (receptacleType ?r FridgeType)
                       (holds ?a ?o) (coolable ?o))
    :effect (and (isCool ?o) (not (isHot ?o))))

  (:action ToggleObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r) (toggleable ?o))
    :effect (isToggled ?o))

  (:action SliceObject :parameters (?a - agent ?l - location ?o - object ?knife - object)
    :precondition (and (atLocation ?a ?l) (objectAtLocation ?o ?l) (sliceable ?o)
                       (holds ?a ?knife) (or (objectType ?knife KnifeType) (objectType ?knife ButterKnifeType)))
    :effect (isSliced ?o)))
